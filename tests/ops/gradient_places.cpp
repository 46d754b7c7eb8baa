// Gradients that GEMMs write where they belong: the sums over several passes, weights that nobody uses, those
// that autograd reaches too. On a GPU as on the CPU.
#include "pom/ops/gradient_places.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "pom/ops/block/lowered_linear.h"
#include "pom/ops/weight_copies.h"

namespace pom::ops {
namespace {

constexpr std::int64_t kIn = 24, kOut = 40, kStride = 1024;

class Places : public testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !at::hasCUDA()) GTEST_SKIP() << "no GPU here";
    at::manual_seed(8);
    const c10::NoGradGuard no_grad;
    flat = (at::randn({4 * kStride}) / 5).to(GetParam());
    gradients = at::zeros_like(flat);
    for (std::int64_t i = 0; i < 4; ++i) {
      const auto view = [&](const at::Tensor& t) {
        return t.narrow(0, i * kStride, kIn * kOut).view({kOut, kIn});
      };
      at::Tensor weight = at::empty({kOut, kIn}, flat.options());
      weight.set_data(view(flat));
      weights.push_back(weight.requires_grad_());
      weights.back().mutable_grad() = view(gradients);
    }
    copies = std::make_unique<WeightCopies>(flat, weights);
    places = std::make_unique<GradientPlaces>(gradients, weights);
    x = at::randn({3, 7, kIn}).to(GetParam());
    at::autocast::set_autocast_enabled(GetParam(), true);
    at::autocast::set_autocast_dtype(GetParam(), at::kBFloat16);
  }
  void TearDown() override {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(GetParam(), false);
  }
  // Of weight i, through the function that asks for places; `times` the gradient of a pass is times·that().
  void pass(std::size_t i, double times = 1) { (times * lowered_linear(x, weights[i], {})).sum().backward(); }
  void pass_of_autograd(std::size_t i) { (weights[i] * 2).sum().backward(); }
  at::Tensor that() const {
    const at::Tensor row = x.to(at::kBFloat16).to(at::kFloat).sum({0, 1});
    return row.expand({kOut, kIn});
  }
  bool is(std::size_t i, double times, double added = 0) const {
    return at::allclose(weights[i].grad(), that() * times + added, 1e-5, 1e-5);
  }

  at::Tensor flat, gradients, x;
  std::vector<at::Tensor> weights;
  std::unique_ptr<WeightCopies> copies;
  std::unique_ptr<GradientPlaces> places;
};

TEST_P(Places, HoldTheSumOverAllPasses) {
  for (int batch = 0; batch < 3; ++batch) {
    places->begin();
    pass(0), pass(1), pass(0, 2), pass(0);
    places->finish();
    EXPECT_TRUE(is(0, 4)) << batch;
    EXPECT_TRUE(is(1, 1)) << batch;
    EXPECT_TRUE(weights[0].grad().is_alias_of(gradients));
  }
}

TEST_P(Places, AreNotSetToZeroFirstWhereAGemmWritesThem) {
  places->begin();
  EXPECT_EQ(places->zeroed(), 3 * kStride + kIn * kOut) << "nobody knows yet who writes what";
  pass(1), pass(2), pass_of_autograd(0);
  places->finish();
  const std::int64_t before = places->zeroed();
  places->begin();
  EXPECT_EQ(places->zeroed() - before, 2 * kIn * kOut) << "of the first and the last";
  gradients.narrow(0, kStride, kIn * kOut).fill_(std::numeric_limits<float>::quiet_NaN());
  pass(1), pass(2), pass_of_autograd(0);
  places->finish();
  EXPECT_EQ(places->zeroed() - before, 2 * kIn * kOut);
  EXPECT_TRUE(is(0, 0, 2) && is(1, 1) && is(2, 1) && is(3, 0));
}

TEST_P(Places, OfUnusedWeightsAreZero) {
  places->begin();
  pass(0), pass(1);
  places->finish();
  places->begin();
  pass(1);
  places->finish();
  EXPECT_TRUE(is(0, 0)) << "and not what they were in the batch before";
  EXPECT_TRUE(is(1, 1));
  EXPECT_EQ(weights[3].grad().abs().max().item<double>(), 0);
}

TEST_P(Places, TakeWhatAutogradAdds) {
  places->begin();
  pass(0), pass_of_autograd(0);
  places->finish();
  EXPECT_TRUE(is(0, 1, 2));
  for (int batch = 0; batch < 2; ++batch) {  // autograd first, where a GEMM was the last time
    places->begin();
    pass_of_autograd(0), pass(0), pass_of_autograd(0);
    places->finish();
    EXPECT_TRUE(is(0, 1, 4)) << batch;
    places->begin();
    pass_of_autograd(0);
    places->finish();
    EXPECT_TRUE(is(0, 0, 2)) << batch;
  }
}

TEST_P(Places, OutsideOfABatchAutogradAddsAsEver) {
  pass(0), pass(0);
  EXPECT_TRUE(is(0, 2));
  places->begin();
  pass(0);
  places->finish();
  EXPECT_TRUE(is(0, 1));
  pass(0);
  EXPECT_TRUE(is(0, 2));
  places.reset();
  pass(0);
  EXPECT_TRUE(is(0, 3));
}

TEST_P(Places, AreThoseOfTheFlatMemory) {
  const at::Tensor other = at::zeros({4 * kStride}, gradients.options());
  EXPECT_THROW(GradientPlaces(other, weights), std::exception);
  const at::Tensor turned[] = {weights[1], weights[0]};
  EXPECT_THROW(GradientPlaces(gradients, turned), std::exception);
}

INSTANTIATE_TEST_SUITE_P(Devices, Places, testing::Values(at::kCPU, at::kCUDA));

}  // namespace
}  // namespace pom::ops
