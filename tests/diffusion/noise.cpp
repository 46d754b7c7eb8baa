// Noise of pictures: addresses as pom/base/noise.h has them, whatever the batch, the threads or the dtype.
#include "pom/diffusion/noise.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"

namespace {

using namespace pom;
using namespace pom::diffusion;

using Seeds = std::vector<std::uint64_t>;

at::Tensor latents(const Seeds& seeds, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  std::vector<std::int64_t> sizes = shape.vec();
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(seeds.size()));
  at::Tensor x = at::empty(sizes, at::TensorOptions().dtype(type));
  fill_latents(x, seeds);
  return x;
}

TEST(Latents, AreAddressedByTheIndexInThePicture) {
  const at::Tensor x = latents({7, 0, 123456789012345}, {3, 5, 7});
  for (const std::int64_t i : {0, 1, 50, 104}) {
    EXPECT_EQ(x[1].flatten()[i].item<float>(), normal_at({0, noise_for::latent, 0}, i));
    EXPECT_EQ(x[2].flatten()[i].item<float>(), normal_at({123456789012345, noise_for::latent, 0}, i));
  }
}

TEST(Latents, DoNotDependOnBatchOrThreads) {
  const int threads = at::get_num_threads();
  const at::Tensor alone = latents({9}, {3, 127, 65});
  for (const int width : {1, 2}) {
    at::set_num_threads(width);
    EXPECT_TRUE(at::equal(latents({1, 2, 9, 4}, {3, 127, 65})[2], alone[0]));
  }
  at::set_num_threads(threads);
}

TEST(Latents, OfABlockAreThoseOfTheWhole) {
  at::Tensor whole = latents({3, 4}, {6, 5, 7}), block = at::empty({2, 2, 5, 7});
  fill_latents(block, Seeds{3, 4}, 2 * block[0].numel());
  EXPECT_TRUE(at::equal(block, whole.slice(1, 4, 6)));
  at::Tensor step = at::empty_like(whole), part = at::empty_like(block);
  fill_step_noise(step, Seeds{3, 4}, 9);
  step_noise(Seeds{3, 4}, block[0].numel())(part, 9);
  EXPECT_TRUE(at::equal(part, step.slice(1, 2, 4)));
}

TEST(Latents, FillOtherTypesAndLayouts) {
  const at::Tensor x = latents({3, 4}, {2, 5, 5});
  EXPECT_TRUE(at::equal(latents({3, 4}, {2, 5, 5}, at::kDouble), x.to(at::kDouble)));
  EXPECT_TRUE(at::equal(latents({3, 4}, {2, 5, 5}, at::kBFloat16), x.to(at::kBFloat16)));
  at::Tensor strided = at::empty({2, 5, 5, 2}, at::kFloat).permute({0, 3, 1, 2});
  fill_latents(strided, Seeds{3, 4});
  EXPECT_TRUE(at::equal(strided, x));
}

TEST(StepNoise, HasItsOwnAddresses) {
  at::Tensor a = at::empty({2, 11}, at::kFloat), b = at::empty_like(a);
  const StepNoise noise = step_noise({5, 6});
  noise(a, 0);
  noise(b, 1);
  EXPECT_EQ(a[1][10].item<float>(), normal_at({6, noise_for::sampler, 0}, 10));
  EXPECT_EQ(b[0][3].item<float>(), normal_at({5, noise_for::sampler, 1}, 3));
  EXPECT_FALSE(at::equal(a, latents({5, 6}, {11})));
}

TEST(Latents, RefuseOtherCountsAndTypes) {
  at::Tensor x = at::empty({2, 3}, at::kFloat), whole = at::empty({2, 3}, at::kLong);
  EXPECT_THROW(fill_latents(x, Seeds{1}), Error);
  EXPECT_THROW(fill_latents(whole, Seeds{1, 2}), Error);
  at::Tensor none = at::empty({0, 3}, at::kFloat);
  EXPECT_NO_THROW(fill_latents(none, Seeds{}));
}

}  // namespace
