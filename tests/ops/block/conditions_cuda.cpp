// What modulates a block, on a GPU, against ATen in fp64: values and gradients as near as fp32 allows, equal
// bits from run to run, through the kernels where the batch is small and else composed.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "pom/ops/block/conditions.h"
#include "pom/ops/mixer.h"

namespace pom::ops {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Case {
  std::int64_t B, rows, K, d;  // rows of s
  std::vector<std::int64_t> parts;
};

Tensors inputs(const Case& c) {
  at::manual_seed(7);
  Tensors made{at::randn({c.rows, c.K})};
  for (const std::int64_t parts : c.parts)
    made.push_back(at::randn({parts * c.d, c.K}) / 10), made.push_back(at::randn({parts * c.d}));
  for (at::Tensor& t : made) t = t.cuda();
  return made;
}

struct Outcome {
  Tensors results;  // gradients of all inputs, then the parts
  std::string function;
};

// The last part has no gradient where there are several.
Outcome run(const Case& c, const Tensors& made, at::ScalarType dtype) {
  Tensors in;
  for (const at::Tensor& t : made) in.push_back(t.to(dtype).detach().clone().requires_grad_());
  std::vector<ConditionMatrix> matrices;
  for (std::size_t i = 0; i < c.parts.size(); ++i)
    matrices.push_back({in[1 + 2 * i], in[2 + 2 * i], c.parts[i]});
  const Tensors parts = conditions(in[0], matrices, at::empty({c.B, 1, c.d}, in[0].options()));
  at::Tensor total = at::zeros({}, parts[0].options().dtype(at::kDouble));
  for (std::size_t i = 0; i < std::max<std::size_t>(1, parts.size() - 1); ++i) {
    const at::Tensor& part = parts[i];
    const at::Tensor wave = at::arange(part.numel(), part.options().dtype(at::kDouble)).sin();
    total = total + (part.to(at::kDouble).flatten() * wave).sum() * static_cast<double>(i + 1);
  }
  Outcome r{torch::autograd::grad({total}, in), parts[0].grad_fn()->name()};
  for (const at::Tensor& part : parts) r.results.push_back(part.detach());
  return r;
}
bool through_kernels(const Outcome& r) {
  return r.function.find("ConditionFunction") != std::string::npos;
}

class GpuConditions : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(GpuConditions, ValuesAndGradients) {
  const Case& c = GetParam();
  const Tensors made = inputs(c);
  const Outcome truth = run(c, made, at::kDouble), ours = run(c, made, at::kFloat),
                again = run(c, made, at::kFloat);
  EXPECT_FALSE(through_kernels(truth));
  EXPECT_TRUE(through_kernels(ours));
  for (std::size_t i = 0; i < truth.results.size(); ++i) {
    const at::Tensor &want = truth.results[i], &got = ours.results[i];
    ASSERT_EQ(got.sizes(), want.sizes()) << i;
    EXPECT_EQ(got.scalar_type(), at::kFloat) << i;
    const double error = (got.to(at::kDouble) - want).abs().max().item<double>();
    EXPECT_LE(error, 3e-6 * want.abs().max().item<double>() + 1e-12) << i;
    EXPECT_TRUE(at::equal(got, again.results[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuConditions,
                         testing::Values(Case{4, 8, 1152, 1152, {4, 2}}, Case{1, 1, 64, 64, {4, 2}},
                                         Case{3, 8, 68, 20, {3, 2}}, Case{8, 8, 2048, 33, {2}},
                                         Case{5, 5, 4, 1, {1, 2}}, Case{2, 2, 384, 384, {8, 3}}));

TEST(GpuConditionsElsewhere, AreComposed) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const Case& c : {Case{9, 9, 64, 64, {4, 2}}, Case{2, 2, 66, 64, {4, 2}}, Case{2, 2, 2052, 8, {2}}})
    EXPECT_FALSE(through_kernels(run(c, inputs(c), at::kFloat))) << c.B << " " << c.K;
  const Case c{2, 2, 64, 64, {4, 2}};
  EXPECT_FALSE(through_kernels(run(c, inputs(c), at::kBFloat16)));
  const PathGuard composed(Path::composed);
  EXPECT_FALSE(through_kernels(run(c, inputs(c), at::kFloat)));
}

// Autocast does not lower what is read from fp32 weights.
TEST(GpuConditionsAutocast, KeepsTheirPrecision) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const Case c{4, 8, 256, 256, {4, 2}};
  const Outcome plain = run(c, inputs(c), at::kFloat);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  const Outcome lowered = run(c, inputs(c), at::kFloat);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  for (std::size_t i = 0; i < plain.results.size(); ++i)
    EXPECT_TRUE(at::equal(plain.results[i], lowered.results[i])) << i;
}

TEST(GpuConditionGradients, OfSecondOrder) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const Case c{2, 2, 32, 16, {2, 1}};
  const Tensors made = inputs(c);
  const auto second = [&](at::ScalarType dtype) {
    Tensors in;
    for (const at::Tensor& t : made) in.push_back(t.to(dtype).detach().clone().requires_grad_());
    const Tensors parts =
        conditions(in[0], {{in[1], in[2], 2}, {in[3], in[4], 1}}, at::empty({c.B, 1, c.d}, in[0].options()));
    EXPECT_EQ(parts[0].grad_fn()->name().find("ConditionFunction") != std::string::npos, dtype == at::kFloat);
    const at::Tensor total = (parts[0] * parts[2]).square().sum() + parts[1].pow(3).sum();
    const at::Tensor slope = torch::autograd::grad({total}, {in[0]}, {}, true, true)[0];
    Tensors all = torch::autograd::grad({slope.square().sum()}, {in[0], in[1], in[3]});
    return all;
  };
  const Tensors truth = second(at::kDouble), ours = second(at::kFloat);
  for (std::size_t i = 0; i < truth.size(); ++i)
    EXPECT_LE((ours[i].to(at::kDouble) - truth[i]).abs().max().item<double>(),
              2e-5 * truth[i].abs().max().item<double>())
        << i;
}

}  // namespace
}  // namespace pom::ops
