// Tests of the times of fragments, of an .mp4 that is made here and of bytes that are none.
#include "pom/io/mp4_fragment.h"

#include <gtest/gtest.h>
#include <vector>

#include "pom/io/clip.h"

namespace pom::io {
namespace {

std::string box(const std::string& kind, const std::string& inside) {
  const std::size_t size = 8 + inside.size();
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xff);
  return bytes + kind + inside;
}

TEST(Mp4Fragment, TimesOfBothVersions) {
  for (const int version : {0, 1}) {
    const std::string time(version == 1 ? 8 : 4, '\x01');
    const std::string tfdt = box("tfdt", std::string{static_cast<char>(version), 0, 0, 0} + time);
    std::string fragment =
        box("moof", box("mfhd", "1234") + box("traf", box("tfhd", "") + tfdt)) + box("mdat", "x");
    EXPECT_EQ(fragment_time(fragment), version == 1 ? 0x0101010101010101u : 0x01010101u);
    const std::size_t size = fragment.size();
    ASSERT_TRUE(set_fragment_time(fragment, 5));
    EXPECT_EQ(fragment_time(fragment), 5u);
    EXPECT_EQ(fragment.size(), size);
    EXPECT_EQ(set_fragment_time(fragment, std::uint64_t{1} << 32), version == 1);
  }
}

TEST(Mp4Fragment, WhatIsNone) {
  const std::string short_time = box("tfdt", std::string("\x01\0\0\0\0\0", 6));
  for (std::string bytes : {std::string(), std::string("moof"), box("moof", ""), box("moof", box("traf", "")),
                            box("moof", box("traf", short_time)), std::string("\0\0\0\1moof", 8),
                            std::string("\xff\xff\xff\xffmoofxxxx", 12)}) {
    EXPECT_FALSE(fragment_time(bytes).has_value());
    EXPECT_FALSE(set_fragment_time(bytes, 1));
  }
}

// Fragments of a stream: the head, then pieces that begin with keys each second.
TEST(ClipStream, PiecesAndKeys) {
  if (clip_libraries().empty()) GTEST_SKIP() << "this build has no FFmpeg";
  std::vector<ClipPiece> pieces;
  const auto writer = open_clip_stream({.width = 32, .height = 16, .fps = 8},
                                       [&](ClipPiece&& piece) { pieces.push_back(std::move(piece)); });
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].bytes.substr(4, 4), "ftyp");
  for (int block = 0; block < 8; ++block) {
    for (int i = 0; i < 3; ++i) writer->add(make_image("test", 32, 16, 3));
    writer->flush();
  }
  writer->finish();
  std::uint64_t last = 0;
  int keys = 0;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    const std::optional<std::uint64_t> time = fragment_time(pieces[i].bytes);
    ASSERT_TRUE(time.has_value()) << i;
    EXPECT_TRUE(i == 1 ? *time == 0 : *time > last);
    last = *time;
    keys += pieces[i].key;
  }
  EXPECT_TRUE(pieces[1].key);
  EXPECT_GE(keys, 3);
  EXPECT_LT(keys, 8);
}

}  // namespace
}  // namespace pom::io
