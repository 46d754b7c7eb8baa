// Tests of rounding to 8 bits.
#include "pom/generate/images.h"

#include <gtest/gtest.h>
#include <limits>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::generate {
namespace {

std::string named(std::int64_t i) {
  return "image " + std::to_string(i);
}

TEST(Images, RoundsToTheNearestLevel) {
  const Request request;
  for (int level = 0; level < 256; ++level)
    for (const double off : {-0.49, 0.0, 0.49}) {
      const double value = (level + off) / 127.5 - 1;
      const std::vector<io::Image> images =
          to_images(at::full({1, 1, 1, 1}, value, at::kFloat), false, request, named);
      EXPECT_EQ(images[0].data[0], std::clamp(level, 0, 255)) << value;
    }
}

TEST(Images, ClampsAndInterleaves) {
  const Request request;
  at::Tensor x = at::zeros({2, 3, 1, 2}, at::kFloat);
  x[1][0][0][0] = -1e30;
  x[1][1][0][0] = 1e30;
  x[1][2][0][1] = 1;
  const std::vector<io::Image> images = to_images(x, false, request, named);
  ASSERT_EQ(images.size(), 2u);
  EXPECT_EQ(images[0].data, std::vector<std::uint8_t>(6, 128));
  EXPECT_EQ(images[1].data, (std::vector<std::uint8_t>{0, 255, 128, 128, 128, 255}));
  EXPECT_EQ(images[1].width, 2);
  EXPECT_EQ(images[1].height, 1);
}

TEST(Images, NotFiniteIsAnError) {
  Request request;
  request.seed = {42};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    at::Tensor x = at::zeros({2, 1, 4, 4}, at::kFloat);
    x[1][0][3][3] = bad;
    try {
      to_images(x, false, request, named);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("image 1 with seed 42"), std::string::npos) << error.what();
    }
  }
}

TEST(Images, GreyAsColours) {
  const std::vector<io::Image> images = to_images(at::ones({1, 1, 1, 2}), true, {}, named);
  EXPECT_EQ(images[0].data, std::vector<std::uint8_t>(6, 255));
}

// Every level comes back, so that strength 0 gives the very image it was given.
TEST(Images, ThereAndBack) {
  io::Image image = io::make_image("test", 256, 1, 3);
  for (int i = 0; i < 256; ++i)
    for (int c = 0; c < 3; ++c)
      image.data[static_cast<std::size_t>(3 * i + c)] = static_cast<std::uint8_t>(i ^ c);
  const at::Tensor values = from_images({image, image}, 3);
  ASSERT_EQ(values.sizes(), at::IntArrayRef({3, 2, 1, 256}));
  for (const io::Image& again : to_images(values.transpose(0, 1), false, {}, named)) EXPECT_EQ(again, image);
  EXPECT_EQ(from_images({image}, 1).sizes(), at::IntArrayRef({1, 1, 1, 256}));
}

}  // namespace
}  // namespace pom::generate
