// Tests of the CRC-32 against its published check values, a bit at a time, and in pieces.
#include "pom/io/crc32.h"

#include <gtest/gtest.h>
#include <string>

namespace pom::io {
namespace {

std::uint32_t bit_by_bit(std::string_view text) {
  std::uint32_t sum = 0xffffffff;
  for (const char c : text) {
    sum ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
  }
  return ~sum;
}

TEST(Crc32, CheckValues) {
  EXPECT_EQ(crc32(""), 0u);
  EXPECT_EQ(crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(crc32("The quick brown fox jumps over the lazy dog"), 0x414fa339u);
  EXPECT_EQ(crc32_hex(0x0a0bu), "00000a0b");
}

TEST(Crc32, EveryLengthAndEverySplit) {
  std::string text;
  for (int i = 0; i < 70; ++i) text += static_cast<char>(i * 37 + 200);
  for (std::size_t size = 0; size <= text.size(); ++size) {
    const std::string_view part = std::string_view(text).substr(0, size);
    EXPECT_EQ(crc32(part), bit_by_bit(part)) << size;
  }
  for (std::size_t split = 0; split <= text.size(); ++split)
    EXPECT_EQ(crc32(std::string_view(text).substr(split), crc32(std::string_view(text).substr(0, split))),
              crc32(text));
}

}  // namespace
}  // namespace pom::io
