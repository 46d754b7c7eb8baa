#include "pom/ops/block_means.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include <ATen/ATen.h>

namespace pom::ops {
namespace {

// Row i has the shares of the blocks that block i sees.
at::Tensor shares(std::int64_t blocks, std::int64_t window) {
  at::Tensor seen = at::ones({blocks, blocks}, at::kDouble).tril();
  if (window > 0) seen = seen.triu(1 - window);
  return seen / seen.sum(1, /*keepdim=*/true);
}

TEST(BlockMeans, AreThoseOfAMatrixAndSoAreTheirGradients) {
  at::manual_seed(1);
  for (std::int64_t blocks = 1; blocks <= 9; ++blocks)
    for (std::int64_t window = 0; window <= blocks + 2; ++window) {
      const at::Tensor x = at::randn({3, blocks, 5}, at::kDouble), a = shares(blocks, window);
      EXPECT_LE((seen_means(x, window) - at::matmul(a, x)).abs().max().item<double>(), 1e-14)
          << blocks << " blocks, window " << window;
      EXPECT_LE((seen_means_backward(x, window) - at::matmul(a.t(), x)).abs().max().item<double>(), 1e-14)
          << blocks << " blocks, window " << window;
    }
}

TEST(BlockMeans, TakeNothingFromBlocksThatAreNotSeen) {
  for (const std::int64_t window : {0, 1, 2, 3, 5})
    for (std::int64_t bad = 0; bad < 7; ++bad) {
      at::Tensor x = at::ones({1, 7, 1}, at::kFloat);
      x[0][bad] = std::numeric_limits<float>::quiet_NaN();
      const at::Tensor H = seen_means(x, window), d = seen_means_backward(x, window);
      for (std::int64_t i = 0; i < 7; ++i) {
        const auto sees = [&](std::int64_t from, std::int64_t to) {
          return to <= from && (window == 0 || to > from - window);
        };
        EXPECT_EQ(std::isnan(H[0][i].item<float>()), sees(i, bad)) << window << " " << bad << " " << i;
        EXPECT_EQ(std::isnan(d[0][i].item<float>()), sees(bad, i)) << window << " " << bad << " " << i;
      }
    }
}

TEST(BlockMeans, OfNoSequencesAreNone) {
  EXPECT_EQ(seen_means(at::zeros({0, 4, 2}), 2).sizes(), at::IntArrayRef({0, 4, 2}));
  EXPECT_EQ(seen_means_backward(at::zeros({0, 4, 2}), 0).sizes(), at::IntArrayRef({0, 4, 2}));
}

}  // namespace
}  // namespace pom::ops
