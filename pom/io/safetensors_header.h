// Private to the room: from the bytes before the data to a validated Header.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "pom/io/safetensors.h"

namespace pom::io::safetensors {

inline constexpr std::uint64_t length_bytes = 8;
inline constexpr std::string_view metadata_key = "__metadata__";

// The header's length from the file's first bytes (all of them when there are fewer than 8), checked against
// the format's limit and the file.
std::uint64_t header_length(std::span<const std::byte> start, std::uint64_t file_bytes,
                            const detail::Site& site);

// The header from its text. `data_bytes` is what the file has after it.
Header parse_header(std::string_view text, std::uint64_t data_bytes, const detail::Site& site);

// The size of a tensor of whole bytes; ShapeOverflow or PartialByte where it has none.
std::uint64_t byte_count(Dtype dtype, std::span<const std::int64_t> shape, const detail::Site& site);

// One of the names that occur more than once.
std::optional<std::string_view> find_duplicate(std::vector<std::string_view> names);

// "[2, 3]", the head of it where there are many dimensions.
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace pom::io::safetensors
