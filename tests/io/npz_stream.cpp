// A .npz that grows piece by piece: what Npz reads back, and what is refused. python/tests/test_scores.py has
// numpy read one.
#include "pom/io/npz_stream.h"

#include "tests/io/picture_support.h"
#include <filesystem>

#include "pom/io/mapped_file.h"
#include "pom/io/npz.h"

namespace pom::io {
namespace {

using NpzStreamTest = PictureTest;

TEST_F(NpzStreamTest, IsReadBack) {
  const std::filesystem::path path = folder / "a.npz";
  const std::vector<std::uint8_t> bytes = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int64_t> numbers = {-1, 7}, shape = {2, 3}, two = {2}, none = {0};
  NpzStream file(path);
  file.begin("arr_0", NpyType::uint8, shape);
  file.add(std::as_bytes(std::span(bytes).first(4)));
  EXPECT_EQ(file.missing(), 2u);
  file.add(std::as_bytes(std::span(bytes).subspan(4)));
  file.begin("arr_1", NpyType::int64, two);
  file.add(std::as_bytes(std::span(numbers)));
  file.begin("empty", NpyType::single, none);
  EXPECT_FALSE(std::filesystem::exists(path));  // not before it is whole
  file.commit();
  const MappedFile all(path, "test");
  const Npz npz(all.view(), "test", 1 << 20);
  ASSERT_EQ(npz.entries().size(), 3u);
  const NpyArray first = npz.read("arr_0");
  EXPECT_EQ(first.header.shape, shape);
  EXPECT_EQ(first.elements, std::string("\1\2\3\4\5\6"));
  EXPECT_EQ(npz.read("arr_1").header.type, NpyType::int64);
  EXPECT_EQ(npz.read("arr_1").elements.substr(8, 1), "\7");
  EXPECT_EQ(npz.read("empty").header.count, 0u);
}

TEST_F(NpzStreamTest, MissesNothing) {
  const std::filesystem::path path = folder / "a.npz";
  const std::vector<std::int64_t> two = {2};
  const std::string three = "abc";
  {
    NpzStream file(path);
    error_of([&] { file.add(std::as_bytes(std::span(three))); }, {"npz write: expected at most 0 bytes"});
    file.begin("a", NpyType::uint8, two);
    error_of([&] { file.add(std::as_bytes(std::span(three))); },
             {"npz write: expected at most 2 bytes more, got 3"});
    error_of([&] { file.begin("b", NpyType::uint8, two); }, {"a.npy: expected 2 bytes more, got none"});
    error_of([&] { file.commit(); }, {"a.npy: expected 2 bytes more, got none"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace pom::io
