// Tests of resizing: what is kept, that areas keep their mean and fine patterns do not alias.
// python/tests/test_dataset.py compares it with Pillow.
#include "pom/data/resize.h"

#include "tests/data/support.h"

namespace pom::data {
namespace {

io::Image picture_of(int width, int height, auto&& value) {
  io::Image image = io::make_image("test", width, height, 3);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c)
        image.data[static_cast<std::size_t>(3 * (y * width + x) + c)] =
            static_cast<std::uint8_t>(value(x, y, c));
  return image;
}

std::vector<std::uint8_t> resized(const io::Image& image, std::int64_t width, std::int64_t height) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(3 * width * height));
  resize_and_crop(image, width, height, out);
  return out;
}

TEST(Resize, TheRightSizeStaysAsItIs) {
  const io::Image image = picture_of(13, 7, [](int x, int y, int c) { return 17 * x + 5 * y + 60 * c; });
  const std::vector<std::uint8_t> out = resized(image, 13, 7);
  for (std::size_t i = 0; i < 13 * 7; ++i)
    for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(out[c * 91 + i], image.data[3 * i + c]);
}

TEST(Resize, KeepsTheMiddle) {
  const io::Image wide = picture_of(12, 4, [](int x, int, int) { return 10 * x; });
  const std::vector<std::uint8_t> out = resized(wide, 4, 4);
  for (std::size_t x = 0; x < 4; ++x) EXPECT_EQ(out[x], 10 * (x + 4));
  const io::Image tall = picture_of(4, 12, [](int, int y, int) { return 10 * y; });
  for (std::size_t y = 0; y < 4; ++y) EXPECT_EQ(resized(tall, 4, 4)[4 * y], 10 * (y + 4));
}

TEST(Resize, FinePatternsBecomeGrey) {
  const io::Image board = picture_of(256, 192, [](int x, int y, int) { return (x + y) % 2 * 255; });
  for (const std::uint8_t value : resized(board, 32, 24)) EXPECT_NEAR(value, 127.5, 2);
}

TEST(Resize, AreasKeepTheirValue) {
  const io::Image flat = picture_of(31, 57, [](int, int, int c) { return 50 + 70 * c; });
  for (const auto& [width, height] : {std::pair{8, 8}, {64, 64}, {31, 1}, {1, 57}, {1, 1}, {100, 3}}) {
    const std::vector<std::uint8_t> out = resized(flat, width, height);
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(out[i], 50 + 70 * (i / static_cast<std::size_t>(width * height)));
  }
}

TEST(Resize, GrowsInStraightLines) {
  const io::Image two = picture_of(2, 2, [](int x, int, int) { return 200 * x; });
  const std::vector<std::uint8_t> out = resized(two, 8, 8);
  const std::vector<int> expected = {0, 0, 25, 75, 125, 175, 200, 200};
  for (std::size_t x = 0; x < 8; ++x) EXPECT_EQ(out[x], expected[x]);
}

TEST(Resize, MistakesAreNamed) {
  io::Image grey = io::make_image("test", 4, 4, 1);
  std::vector<std::uint8_t> out(48);
  EXPECT_NE(error_of([&] { resize_and_crop(grey, 4, 4, out); }).find("8-bit RGB"), std::string::npos);
  const io::Image image = io::make_image("test", 4, 4, 3);
  EXPECT_NE(error_of([&] { resize_and_crop(image, 5, 5, out); }).find("expected 75 bytes, got 48"),
            std::string::npos);
}

}  // namespace
}  // namespace pom::data
