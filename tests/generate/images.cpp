// Tests of rounding to 8 bits.
#include "pom/generate/pictures.h"

#include <gtest/gtest.h>
#include <limits>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::generate {
namespace {

TEST(Pictures, RoundsToTheNearestLevel) {
  const Request request;
  for (int level = 0; level < 256; ++level)
    for (const double off : {-0.49, 0.0, 0.49}) {
      const double value = (level + off) / 127.5 - 1;
      const std::vector<io::Image> images = to_images(at::full({1, 1, 1, 1}, value, at::kFloat), &request);
      EXPECT_EQ(images[0].data[0], std::clamp(level, 0, 255)) << value;
    }
}

TEST(Pictures, ClampsAndInterleaves) {
  const std::vector<Request> requests(2);
  at::Tensor x = at::zeros({2, 3, 1, 2}, at::kFloat);
  x[1][0][0][0] = -1e30;
  x[1][1][0][0] = 1e30;
  x[1][2][0][1] = 1;
  const std::vector<io::Image> images = to_images(x, requests.data());
  ASSERT_EQ(images.size(), 2u);
  EXPECT_EQ(images[0].data, std::vector<std::uint8_t>(6, 128));
  EXPECT_EQ(images[1].data, (std::vector<std::uint8_t>{0, 255, 128, 128, 128, 255}));
  EXPECT_EQ(images[1].width, 2);
  EXPECT_EQ(images[1].height, 1);
}

TEST(Pictures, NotFiniteIsAnError) {
  std::vector<Request> requests(2);
  requests[1].seed = 42;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    at::Tensor x = at::zeros({2, 1, 4, 4}, at::kFloat);
    x[1][0][3][3] = bad;
    try {
      to_images(x, requests.data());
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("seed 42"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace pom::generate
