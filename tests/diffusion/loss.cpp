// The losses: values and gradients against formulas written by hand.
#include "pom/diffusion/loss.h"

#include "tests/diffusion/judge.h"
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "pom/base/error.h"

namespace {

using namespace pom;
using namespace pom::diffusion;
using pom::diffusion::testing::all_paths;
using pom::diffusion::testing::name_of;

const std::vector<double> kTimes = {0.02, 0.2, 0.5, 0.8, 0.98};

struct Example {
  at::Tensor x0, noise, output, t;
};

Example example() {
  at::manual_seed(1);
  const auto picture = [] { return at::randn({5, 2, 3, 4}, at::kDouble); };
  return {picture(), picture(), picture(), at::tensor(kTimes, at::kDouble)};
}

double target(const Path& path, double x0, double noise) {
  if (path.prediction() == Prediction::x0) return x0;
  return path.prediction() == Prediction::velocity ? noise - x0 : noise;
}

// An error of x0 is one of the velocity divided by σ, which counts as 0.05 at least.
double plain(const Path& path, double t) {
  return path.prediction() == Prediction::x0 ? std::pow(std::max(path.sigma(t), 0.05), -2) : 1;
}

// min(SNR, γ) times how much an error of the answer is one of the predicted x0, squared.
double min_snr(const Path& path, double t, double gamma) {
  const double snr = std::pow(path.alpha(t) / path.sigma(t), 2);
  if (path.prediction() == Prediction::x0)
    return std::min(snr, gamma) * std::pow(path.sigma(t) / std::max(path.sigma(t), 0.05), 2);
  return std::min(snr, gamma) * std::pow(path.x0_weights(t).output, 2);
}

TEST(Loss, IsTheFormulaAndSoIsItsGradient) {
  const std::int64_t size = 24;
  for (const Path& path : all_paths())
    for (const Loss& loss : {Loss::mse(), Loss::min_snr(), Loss::min_snr(0.5)}) {
      const Example e = example();
      const at::Tensor output = e.output.clone().set_requires_grad(true);
      const at::Tensor losses = loss(path, output, e.x0, e.noise, e.t);
      ASSERT_EQ(losses.sizes(), at::IntArrayRef({5}));
      const at::Tensor scale =
          at::tensor({1.0, -2.0, 0.5, 3.0, 0.25}, at::kDouble);  // a gradient for each picture
      const at::Tensor gradient = torch::autograd::grad({losses}, {output}, {scale})[0];
      for (std::int64_t i = 0; i < 5; ++i) {
        const double t = kTimes[static_cast<std::size_t>(i)];
        const double gamma = loss == Loss::min_snr() ? 5 : 0.5;
        const double weight = loss == Loss::mse() ? plain(path, t) : min_snr(path, t, gamma);
        double sum = 0;
        for (std::int64_t j = 0; j < size; ++j) {
          const auto at = [&](const at::Tensor& x) { return x.flatten(1)[i][j].item<double>(); };
          const double error = at(e.output) - target(path, at(e.x0), at(e.noise));
          sum += error * error;
          ASSERT_NEAR(at(gradient), scale[i].item<double>() * weight * 2 * error / size, 1e-12)
              << name_of(path);
        }
        ASSERT_NEAR(losses[i].item<double>(), weight * sum / size, 1e-11 * std::max(1.0, weight))
            << name_of(path);
      }
    }
}

TEST(Loss, MinSnrIsFiniteAtTheEnds) {
  const at::Tensor t = at::tensor({0.0, 1.0}, at::kDouble);
  for (const Path& path : all_paths())
    EXPECT_TRUE(Loss::min_snr().weights(path, t).isfinite().all().item<bool>());
  EXPECT_TRUE(at::allclose(Loss::min_snr().weights(Path::flow(), t), at::tensor({0.0, 0.0}, at::kDouble)));
}

TEST(Loss, WidensHalfPrecision) {
  const Example e = example();
  const at::Tensor losses = Loss::mse()(Path::flow(), e.output.to(at::kBFloat16), e.x0.to(at::kFloat),
                                        e.noise.to(at::kFloat), e.t.to(at::kFloat));
  EXPECT_EQ(losses.scalar_type(), at::kFloat);
  EXPECT_TRUE(
      at::allclose(losses.to(at::kDouble), Loss::mse()(Path::flow(), e.output, e.x0, e.noise, e.t), 2e-2, 0));
}

TEST(Loss, IsFoundByName) {
  EXPECT_EQ(Loss::named("mse"), Loss::mse());
  EXPECT_EQ(Loss::named("min-snr"), Loss::min_snr(5));
  for (const std::string& name : Loss::names()) EXPECT_EQ(Loss::named(name).name(), name);
  try {
    Loss::named("msr");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "Loss: name: there is no \"msr\"; did you mean \"mse\"?");
  }
  EXPECT_THROW(Loss::min_snr(0), Error);
  EXPECT_THROW(Loss::min_snr(-1), Error);
}

TEST(Loss, RefusesOtherShapes) {
  const Example e = example();
  EXPECT_THROW(Loss::mse()(Path::flow(), e.output.narrow(0, 0, 1), e.x0, e.noise, e.t), Error);
  EXPECT_THROW(Loss::mse()(Path::flow(), e.output, e.x0, e.noise, e.t.narrow(0, 0, 1)), Error);
  EXPECT_THROW(Loss::mse()(Path::flow(), e.output, e.x0, e.noise.narrow(0, 0, 1), e.t), Error);
}

}  // namespace
