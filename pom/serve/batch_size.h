// How many pictures a batch has. On a CPU any number: bits do not depend on it. On a GPU one of a few, filled
// up with repeats: bits are promised for batches of one size, whatever the others in it are, and each other
// size costs the device its graphs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pom::serve {

// In order; empty: any. In fp8 the scales are measured over the whole batch: pictures are made alone.
std::vector<std::int64_t> batch_sizes(std::string_view device, std::string_view dtype);

// Of those sizes that are not over `most`, the least in which all that wait fit, if they are half of it at
// least; else the largest that they fill.
std::int64_t batch_size(std::int64_t waiting, std::int64_t most, std::span<const std::int64_t> sizes);

// "1,4,16,64": throws pom::Error where they are not numbers from 1 to 1024 that rise.
std::vector<std::int64_t> parse_batch_sizes(const std::string& text, std::string_view flag);

}  // namespace pom::serve
