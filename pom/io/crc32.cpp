// Eight bytes at a time: table k holds the sums of a byte that k zero bytes follow.
#include "pom/io/crc32.h"

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>

namespace pom::io {
namespace {

static_assert(std::endian::native == std::endian::little, "words are taken as they lie in memory");

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    tables[0][byte] = sum;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 255];
    }
  return tables;
}

constexpr CrcTables crc_tables = make_crc_tables();

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t sum = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    word ^= sum;
    sum = 0;
    for (std::size_t k = 0; k < 8; ++k) sum ^= crc_tables[7 - k][word >> (8 * k) & 255];
  }
  for (const std::byte byte : bytes)
    sum = sum >> 8 ^ crc_tables[0][(sum ^ std::to_integer<std::uint32_t>(byte)) & 255];
  return ~sum;
}

std::string crc32_hex(std::uint32_t sum) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", static_cast<unsigned>(sum));
  return digits;
}

}  // namespace pom::io
