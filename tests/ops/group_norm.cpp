// Group norms with SiLU on a CPU, against ATen's in fp64: odd channels, means far from zero, dtypes, and bits
// that no thread changes.
#include "pom/ops/group_norm.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/base/error.h"

namespace pom::ops {
namespace {

constexpr auto last = at::MemoryFormat::ChannelsLast;

struct NormCase {
  at::Tensor x, weight, bias;
  GroupNormOptions options;
  NormCase(at::IntArrayRef shape, std::int64_t groups, bool silu, double mean = 0.3) {
    at::manual_seed(5);
    x = (at::randn(shape) * 2 + mean).contiguous(last);
    weight = at::randn({shape[1]}) * 0.1 + 1, bias = at::randn({shape[1]});
    options = {groups, 1e-6, silu};
  }
  at::Tensor exact() const {
    const at::Tensor y = at::group_norm(x.to(at::kDouble), options.groups, weight.to(at::kDouble),
                                        bias.to(at::kDouble), options.epsilon);
    return options.silu ? at::silu(y) : y;
  }
};
double away(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(GroupNorm, IsATens) {
  for (const bool silu : {false, true})
    for (const auto& [shape, groups] : std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>>{
             {{2, 64, 9, 15}, 32}, {{1, 24, 5, 7}, 4}, {{1, 6, 1, 1}, 3}, {{1, 3, 64, 65}, 1}}) {
      const NormCase c(shape, groups, silu);
      EXPECT_LT(away(group_norm(c.x, c.weight, c.bias, c.options), c.exact()), 5e-6);
    }
}

TEST(GroupNorm, MeansFarFromZeroCostLittle) {
  const NormCase c({1, 32, 20, 30}, 8, false, 1000);
  const at::Tensor plain = at::group_norm(c.x, 8, c.weight, c.bias, 1e-6);
  EXPECT_LE(away(group_norm(c.x, c.weight, c.bias, c.options), c.exact()), 2 * away(plain, c.exact()) + 1e-6);
}

TEST(GroupNorm, InPlaceAndInSixteenBits) {
  const NormCase c({2, 40, 6, 11}, 8, true);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = c.x.to(dtype).contiguous(last), before = x.clone();
    const at::Tensor apart = group_norm(x, c.weight, c.bias, c.options);
    EXPECT_TRUE(x.equal(before));
    const double step = dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
    EXPECT_LT(away(apart, c.exact()), 2 * step * c.exact().abs().max().item<double>());
    const at::Tensor same = group_norm(x, c.weight, c.bias, c.options, true);
    EXPECT_EQ(same.data_ptr(), x.data_ptr());
    EXPECT_TRUE(x.equal(apart));
  }
}

TEST(GroupNorm, ThreadsChangeNoBit) {
  const NormCase c({1, 64, 50, 41}, 32, true);
  const at::Tensor all = group_norm(c.x, c.weight, c.bias, c.options);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(group_norm(c.x, c.weight, c.bias, c.options).equal(all));
  at::set_num_threads(threads);
}

TEST(GroupNorm, MomentsAreThoseOfChannels) {
  const NormCase c({2, 24, 13, 11}, 4, true, 100);
  const ChannelMoments made = channel_moments(c.x);
  const at::Tensor wide = c.x.to(at::kDouble), means = wide.mean({2, 3});
  EXPECT_LT(away(made.means, means), 1e-4);
  const at::Tensor squares = (wide - means.view({2, 24, 1, 1})).square().sum({2, 3});
  EXPECT_LT(away(made.squares / squares, at::ones_like(squares)), 1e-5);
}

TEST(GroupNorm, ScalesByFactors) {
  const NormCase c({2, 24, 3, 5}, 4, true);
  const at::Tensor scale = at::randn({2, 24}), shift = at::randn({2, 24});
  const at::Tensor plain = c.x * scale.view({2, 24, 1, 1}) + shift.view({2, 24, 1, 1});
  EXPECT_LT(away(scaled(c.x, scale, shift, false), plain), 1e-5);
  EXPECT_LT(away(scaled(c.x, scale, shift), at::silu(plain)), 1e-5);
  EXPECT_THROW(scaled(c.x, scale.narrow(0, 0, 1), shift), Error);
}

TEST(GroupNorm, SaysWhatItTakes) {
  EXPECT_FALSE(takes_group_norm(at::randn({1, 8, 4, 4})));
  EXPECT_FALSE(takes_group_norm(at::randn({1, 8, 4, 4}, at::kDouble).contiguous(last)));
  const NormCase c({1, 24, 3, 5}, 5, true);
  EXPECT_THROW(group_norm(c.x, c.weight, c.bias, c.options), Error) << "24 channels in 5 groups";
  EXPECT_THROW(channel_moments(at::randn({1, 8, 4, 4})), Error);
}

}  // namespace
}  // namespace pom::ops
