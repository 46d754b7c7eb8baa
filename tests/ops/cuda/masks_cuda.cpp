// The operator on a GPU under causal masks, windows and of packed sequences: the kernels, forced, against the
// composed operations in fp64, forward and all gradients, within twice the error of the composed operations
// in the same dtype; equal bits from run to run. Skipped where there is no GPU or no kernels.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "pom/base/error.h"
#include "pom/ops/cuda/device.h"
#include "pom/ops/mixer.h"

namespace pom::ops {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lengths = std::vector<std::int64_t>;

struct Case {
  const char* name;
  Mask mask;
  std::int64_t B, n;      // of a batch
  Lengths queries, keys;  // packed
  std::int64_t d, order, expand;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

Lengths starts(const Lengths& lengths) {
  Lengths result{0};
  for (const std::int64_t n : lengths) result.push_back(result.back() + n);
  return result;
}
Packing packing_of(const Case& c) {
  if (c.keys.empty()) return {};
  return {at::tensor(starts(c.queries), at::kInt).cuda(), at::tensor(starts(c.keys), at::kInt).cuda()};
}
bool crosses(const Case& c) {
  return c.queries != c.keys;
}

// Queries, context where it is another, and the weights.
Tensors inputs(const Case& c, at::ScalarType dtype) {
  const std::int64_t kD = c.order * c.expand * c.d;
  const double in = 1 / std::sqrt(static_cast<double>(c.d)), out = 1 / std::sqrt(static_cast<double>(kD));
  const auto made = [&](at::IntArrayRef shape, double size) {
    return (at::randn(shape) * size).to(dtype).cuda();
  };
  Tensors all;
  if (c.keys.empty())
    all.push_back(made({c.B, c.n, c.d}, 1));
  else
    all.push_back(made({starts(c.queries).back(), c.d}, 1));
  if (crosses(c)) all.push_back(made({starts(c.keys).back(), c.d}, 1));
  for (const at::Tensor& w : {made({kD, c.d}, in), made({kD}, 0.3), made({kD, c.d}, in), made({kD}, 0.3),
                              made({c.d, kD}, out), made({c.d}, 0.3)})
    all.push_back(w);
  return all;
}

Tensors leaves(const Tensors& made, at::ScalarType dtype) {
  Tensors result;
  for (const at::Tensor& t : made) result.push_back(t.to(dtype).detach().clone().requires_grad_());
  return result;
}
at::Tensor layer(const Case& c, const Tensors& in) {
  const std::size_t w = crosses(c) ? 2 : 1;
  return mixer_layer(in[0], in[w - 1], {in[w], in[w + 1], in[w + 2], in[w + 3], in[w + 4], in[w + 5]},
                     c.order, c.mask, packing_of(c));
}
// The output and the gradients of all inputs.
Tensors results(Path path, const Case& c, const Tensors& made, at::ScalarType dtype) {
  const PathGuard guard(path);
  const Tensors in = leaves(made, dtype);
  const at::Tensor out = layer(c, in);
  if (path == Path::fused) {
    EXPECT_NE(out.grad_fn()->name().find("LayerFunction"), std::string::npos) << out.grad_fn()->name();
  }
  const at::Tensor wave =
      at::arange(out.numel(), out.options().dtype(at::kDouble)).mul(0.37).sin().view(out.sizes());
  Tensors all = torch::autograd::grad({out}, in, {wave.to(dtype)});
  all.push_back(out.detach());
  return all;
}
double error(const at::Tensor& a, const at::Tensor& truth) {
  return a.numel() ? (a.to(at::kDouble) - truth).abs().max().item<double>() : 0;
}
void expect_close(const Tensors& got, const Tensors& plain, const Tensors& truth, at::ScalarType dtype) {
  const double unit = dtype == at::kFloat ? 0x1p-23 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
  ASSERT_EQ(got.size(), truth.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double scale = truth[i].abs().max().item<double>();
    EXPECT_LE(error(got[i], truth[i]), 2 * error(plain[i], truth[i]) + 8 * unit * scale) << "result " << i;
  }
}

const Case kCases[] = {
    {"causal", Mask::causal(), 2, 203, {}, {}, 24, 2, 2},
    {"causal_long", Mask::causal(), 1, 700, {}, {}, 16, 3, 1},
    {"causal_short", Mask::causal(), 3, 7, {}, {}, 24, 4, 1},
    {"causal_one", Mask::causal(), 2, 1, {}, {}, 24, 2, 2},
    {"causal_odd_width", Mask::causal(), 2, 33, {}, {}, 5, 7, 1},
    {"window_of_1", Mask::causal(1), 2, 50, {}, {}, 24, 2, 1},
    {"window_of_5", Mask::causal(5), 2, 203, {}, {}, 24, 2, 2},
    {"window_of_40", Mask::causal(40), 1, 203, {}, {}, 24, 1, 2},
    {"window_of_300", Mask::causal(300), 1, 700, {}, {}, 16, 2, 1},
    {"window_beyond", Mask::causal(1000), 2, 90, {}, {}, 16, 2, 1},
    {"blocks_of_3", Mask::block_causal(3), 2, 100, {}, {}, 24, 2, 2},
    {"blocks_of_3_window", Mask::block_causal(3, 4), 2, 100, {}, {}, 24, 3, 1},
    {"blocks_of_50", Mask::block_causal(50), 2, 203, {}, {}, 24, 2, 2},
    {"blocks_of_50_window", Mask::block_causal(50, 2), 1, 203, {}, {}, 24, 2, 2},
    {"block_beyond", Mask::block_causal(1000), 2, 90, {}, {}, 16, 2, 1},
    {"many_blocks", Mask::block_causal(2), 1, 1500, {}, {}, 16, 2, 1},
    {"packed", Mask::none(), 0, 0, {5, 1, 0, 74, 331}, {5, 1, 0, 74, 331}, 24, 2, 2},
    {"packed_cross", Mask::none(), 0, 0, {3, 0, 1, 50, 7}, {9, 2, 300, 1, 64}, 24, 3, 1},
    {"packed_causal", Mask::causal(), 0, 0, {5, 1, 0, 74, 331}, {5, 1, 0, 74, 331}, 24, 2, 2},
    {"packed_window", Mask::causal(40), 0, 0, {5, 1, 0, 74, 331}, {5, 1, 0, 74, 331}, 24, 2, 2},
    {"packed_blocks", Mask::block_causal(40), 0, 0, {5, 1, 0, 74, 331}, {5, 1, 0, 74, 331}, 24, 2, 1},
    {"packed_blocks_window",
     Mask::block_causal(7, 3),
     0,
     0,
     {5, 1, 0, 74, 331},
     {5, 1, 0, 74, 331},
     24,
     2,
     1},
};

bool lacks_kernels() {
  return !at::hasCUDA() || !cuda::has_kernels();
}

class GpuMasks : public testing::TestWithParam<std::tuple<Case, at::ScalarType>> {};

TEST_P(GpuMasks, ValuesAndGradients) {
  if (lacks_kernels()) GTEST_SKIP() << "no GPU here";
  at::manual_seed(3);
  const auto [c, dtype] = GetParam();
  const Tensors made = inputs(c, dtype);
  const Tensors truth = results(Path::composed, c, made, at::kDouble);
  const Tensors plain = results(Path::composed, c, made, dtype), got = results(Path::fused, c, made, dtype);
  expect_close(got, plain, truth, dtype);
  const Tensors again = results(Path::fused, c, made, dtype);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], again[i])) << "result " << i;
}

INSTANTIATE_TEST_SUITE_P(Ops, GpuMasks,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  c10::toString(std::get<1>(info.param));
                         });

TEST(GpuMasks, BetweenProjections) {
  if (lacks_kernels()) GTEST_SKIP() << "no GPU here";
  at::manual_seed(4);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const Mask& mask :
         {Mask::causal(), Mask::causal(6), Mask::block_causal(5, 3), Mask::block_causal(64)}) {
      const Tensors made{at::randn({2, 203, 3 * 7}).to(dtype).cuda(),
                         at::randn({2, 203, 3 * 7}).to(dtype).cuda()};
      const at::Tensor dout = at::randn({2, 203, 3 * 7}).to(dtype).cuda();
      const auto with = [&](Path path, at::ScalarType type) {
        const PathGuard guard(path);
        const Tensors in = leaves(made, type);
        const at::Tensor out = polynomial_mixer(in[0], in[1], 3, mask);
        Tensors all = torch::autograd::grad({out}, in, {dout.to(type)});
        all.push_back(out.detach());
        return all;
      };
      SCOPED_TRACE(testing::Message()
                   << "block " << mask.block << ", window " << mask.window << ", " << dtype);
      expect_close(with(Path::fused, dtype), with(Path::composed, dtype), with(Path::composed, at::kDouble),
                   dtype);
    }
}

// A sequence has the same bits in a batch, alone, and packed with others, up to what products make of it:
// between projections.
TEST(GpuMasks, NeighboursChangeNoBit) {
  if (lacks_kernels()) GTEST_SKIP() << "no GPU here";
  at::manual_seed(5);
  const PathGuard fused(Path::fused);
  const at::NoGradGuard no_grad;
  const at::Tensor ho = at::randn({2, 203, 48}).cuda(), se = at::randn({2, 203, 48}).cuda();
  const at::Tensor cu = at::tensor(Lengths{0, 203, 406}, at::kLong).cuda();
  for (const Mask& mask :
       {Mask::causal(), Mask::causal(30), Mask::block_causal(5), Mask::block_causal(40, 3)}) {
    const at::Tensor both = polynomial_mixer(ho, se, 2, mask);
    const at::Tensor packed = polynomial_mixer(ho.view({406, 48}), se.view({406, 48}), 2, mask, {cu, cu});
    const at::Tensor alone = polynomial_mixer(ho.narrow(0, 1, 1), se.narrow(0, 1, 1), 2, mask);
    EXPECT_TRUE(at::equal(both.view({406, 48}), packed)) << mask.block << " " << mask.window;
    EXPECT_TRUE(at::equal(both.narrow(0, 1, 1), alone)) << mask.block << " " << mask.window;
  }
}

TEST(GpuMasks, SecondDerivativesAreComposed) {
  if (lacks_kernels()) GTEST_SKIP() << "no GPU here";
  at::manual_seed(6);
  const Case c{"", Mask::causal(4), 2, 9, {}, {}, 6, 2, 1};
  const Tensors made = inputs(c, at::kFloat);
  const auto second = [&](Path path, at::ScalarType dtype) {
    const PathGuard guard(path);
    const Tensors in = leaves(made, dtype);
    const at::Tensor g = torch::autograd::grad({layer(c, in).sum()}, {in[0]}, {}, true, true)[0];
    return torch::autograd::grad({g.square().sum()}, {in[0]})[0];
  };
  const at::Tensor truth = second(Path::composed, at::kDouble);
  EXPECT_LE(error(second(Path::fused, at::kFloat), truth), 1e-4 * truth.abs().max().item<double>());
}

TEST(GpuMasks, WhatHasNoKernelIsRefused) {
  if (lacks_kernels()) GTEST_SKIP() << "no GPU here";
  const PathGuard fused(Path::fused);
  const at::Tensor x = at::randn({2, 9, 34}).cuda().requires_grad_();
  EXPECT_THROW(polynomial_mixer(x.to(at::kDouble), x.to(at::kDouble), 2, Mask::causal()), Error);
  EXPECT_THROW(polynomial_mixer(x, x, 17, Mask::causal()), Error);
  EXPECT_THROW(polynomial_mixer(x, x, 2, Mask::full(at::ones({2, 9, 9}, x.options().dtype(at::kBool)))),
               Error);
}

}  // namespace
}  // namespace pom::ops
