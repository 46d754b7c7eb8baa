// The CRC-32 of zip, PNG and zlib (polynomial 0xedb88320, reflected). It finds flipped bits; it is no
// signature.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pom::io {

// Of bytes that follow those of which `before` is the sum: crc32(b, crc32(a)) is that of a and b together.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);
inline std::uint32_t crc32(std::string_view text, std::uint32_t before = 0) {
  return crc32(std::as_bytes(std::span(text)), before);
}

// Eight digits in lower case.
std::string crc32_hex(std::uint32_t sum);

}  // namespace pom::io
