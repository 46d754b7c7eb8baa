// 3x3 convolutions with fewer products, against ATen's in fp64: shapes, dtypes, upsampling, what is added on
// the way, and bits that no thread changes.
#include "pom/ops/winograd.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/base/error.h"

namespace pom::ops {
namespace {

constexpr auto last = at::MemoryFormat::ChannelsLast;

struct Case {
  std::int64_t batch, in, out, height, width;
};
const Case cases[] = {
    {2, 32, 64, 7, 9}, {1, 64, 32, 1, 1}, {1, 32, 32, 13, 1}, {1, 320, 96, 6, 20}, {1, 32, 32, 31, 33}};

struct Layer {
  at::Tensor x, weight, bias, other;
  Layer(const Case& c, bool upsampled) {
    at::manual_seed(3);
    const std::int64_t factor = upsampled ? 2 : 1;
    x = at::randn({c.batch, c.in, c.height, c.width}).contiguous(last);
    weight = at::randn({c.out, c.in, 3, 3}) / std::sqrt(9.0 * static_cast<double>(c.in));
    bias = at::randn({c.out});
    other = at::randn({c.batch, c.out, factor * c.height, factor * c.width}).contiguous(last);
  }
};

at::Tensor composed(const Layer& l, bool upsampled, at::ScalarType dtype) {
  at::Tensor x = l.x.to(dtype);
  if (upsampled) x = at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)});
  return at::conv2d(x, l.weight.to(dtype), l.bias.to(dtype), 1, 1);
}
double largest(const at::Tensor& x) {
  return x.to(at::kDouble).abs().max().item<double>();
}

TEST(Winograd, AsCloseToFp64AsPlainProducts) {
  for (const bool upsampled : {false, true})
    for (const Case& c : cases) {
      const Layer l(c, upsampled);
      const at::Tensor exact = composed(l, upsampled, at::kDouble);
      const at::Tensor made = winograd(l.x, pack_winograd(l.weight, l.bias, upsampled));
      ASSERT_EQ(made.sizes(), exact.sizes());
      EXPECT_TRUE(made.is_contiguous(last));
      const double plain = largest(composed(l, upsampled, at::kFloat) - exact);
      EXPECT_LE(largest(made - exact), 2 * plain + 1e-6 * largest(exact)) << c.in << " " << upsampled;
    }
}

TEST(Winograd, AddsAndKeepsOther) {
  for (const bool upsampled : {false, true}) {
    const Layer l(cases[0], upsampled);
    const WinogradWeights weights = pack_winograd(l.weight, l.bias, upsampled);
    const at::Tensor apart = winograd(l.x, weights), before = l.other.clone();
    const at::Tensor sum = winograd(l.x, weights, l.other);
    EXPECT_TRUE(sum.equal(apart + before));
    EXPECT_TRUE(l.other.equal(before));
    const at::Tensor in_place = winograd(l.x, weights, l.other, true);
    EXPECT_EQ(in_place.data_ptr(), l.other.data_ptr());
    EXPECT_TRUE(l.other.equal(sum));
  }
}

TEST(Winograd, WithoutBias) {
  const Layer l(cases[0], false);
  const at::Tensor made = winograd(l.x, pack_winograd(l.weight, {}));
  EXPECT_LT(largest(made - at::conv2d(l.x, l.weight, {}, 1, 1)), 1e-5);
}

TEST(Winograd, StoresSixteenBits) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    Layer l(cases[0], false);
    l.x = l.x.to(dtype), l.weight = l.weight.to(dtype), l.bias = l.bias.to(dtype),
    l.other = l.other.to(dtype);
    const at::Tensor exact = composed(l, false, at::kDouble) + l.other.to(at::kDouble);
    const at::Tensor made = winograd(l.x, pack_winograd(l.weight, l.bias), l.other);
    EXPECT_EQ(made.scalar_type(), dtype);
    const double step = dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
    EXPECT_LT(largest(made - exact), step * largest(exact) + 1e-5);
  }
}

TEST(Winograd, ThreadsAndNeighboursChangeNoBit) {
  const Layer l(cases[0], false);
  const WinogradWeights weights = pack_winograd(l.weight, l.bias);
  const at::Tensor all = winograd(l.x, weights);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(winograd(l.x, weights).equal(all));
  at::set_num_threads(threads);
  EXPECT_TRUE(winograd(l.x.narrow(0, 1, 1), weights).equal(all.narrow(0, 1, 1)));
}

TEST(Winograd, SaysWhatItTakes) {
  EXPECT_FALSE(takes_winograd(at::randn({48, 32, 3, 3})));
  EXPECT_FALSE(takes_winograd(at::randn({32, 32, 1, 1})));
  EXPECT_FALSE(takes_winograd(at::randn({32, 32, 3, 3}, at::kDouble)));
  EXPECT_THROW(pack_winograd(at::randn({32, 31, 3, 3}), {}), Error);
  const WinogradWeights weights = pack_winograd(at::randn({32, 32, 3, 3}), {});
  EXPECT_THROW(winograd(at::randn({1, 32, 5, 5}), weights), Error) << "not channels-last";
  const at::Tensor x = at::randn({1, 32, 5, 5}).contiguous(last);
  EXPECT_THROW(winograd(x, weights, at::randn({1, 32, 5, 4}).contiguous(last)), Error);
  EXPECT_GT(winograd_scratch(32, 32), 0);
}

}  // namespace
}  // namespace pom::ops
