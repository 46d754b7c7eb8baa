// Pictures seen in a mirror, half of them at each visit. C planes of H rows of W pixels.
#pragma once

#include <cstdint>
#include <span>

namespace pom::data {

// A function of the three alone.
bool is_mirrored(std::uint64_t seed, std::int64_t index, std::int64_t visit);

// Left becomes right in every row of `width` pixels.
void mirror(std::span<std::uint8_t> planes, std::int64_t width);

}  // namespace pom::data
