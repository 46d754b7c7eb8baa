// The paths: their variances, mixing, and what answers of a network mean.
#include "pom/diffusion/path.h"

#include "tests/diffusion/judge.h"
#include <cmath>
#include <functional>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace {

using namespace pom;
using namespace pom::diffusion;
using pom::diffusion::testing::all_paths;
using pom::diffusion::testing::name_of;

TEST(Path, HasTheVariancesOfTheReference) {
  const double pi = std::acos(-1.0);
  const auto logistic = [](double x) { return 1 / (1 + std::exp(-x)); };
  const std::function<double(double)> variances[] = {
      [](double t) { return t; }, [&](double t) { return std::sin(pi * t / 2); },
      [&](double t) { return 1 - std::cos(pi * t / 2); },
      [&](double t) { return (logistic(4 * t - 2) - logistic(-2)) / (logistic(2) - logistic(-2)); }};
  for (int k = 0; k < 4; ++k) {
    const Path path = Path::epsilon(static_cast<Variance>(k));
    for (const double t : {0.01, 0.25, 0.5, 0.77, 0.95}) {
      EXPECT_NEAR(path.sigma(t), std::sqrt(variances[k](t)), 1e-14) << name_of(path);
      EXPECT_NEAR(path.alpha(t), std::sqrt(1 - variances[k](t)), 1e-13) << name_of(path);
    }
    EXPECT_NEAR(path.sigma(0), 1e-3, 1e-15);
    EXPECT_NEAR(path.alpha(1), 1e-3, 1e-12);
    EXPECT_NEAR(path.alpha(0), std::sqrt(1 - 1e-6), 1e-15);
  }
  EXPECT_EQ(Path::flow().alpha(1), 0);
  EXPECT_EQ(Path::flow().sigma(1), 1);
  EXPECT_EQ(Path::flow().alpha(0.25), 0.75);
}

// The thousand steps of DDPM: step i is at t = (i + 1) / 1000, and what is left of a picture there is the
// product of 1 - β.
TEST(Path, HasTheStepsOfDdpm) {
  const Path path = Path::named("epsilon", "ddpm-linear");
  double kept = 1;
  for (int i = 0; i < 1000; ++i) {
    kept *= 1 - (1e-4 + (0.02 - 1e-4) * i / 999);
    const double t = (i + 1) / 1000.0;
    EXPECT_NEAR(path.alpha(t), std::sqrt(kept), 1e-12) << i;
    EXPECT_NEAR(path.sigma(t), std::sqrt(1 - kept), 1e-11) << i;
  }
  EXPECT_NEAR(path.alpha(1), 0.00635, 1e-5);
  EXPECT_NEAR(path.sigma(0), 1e-3, 1e-15);  // clamped
  for (double t = 0.0001; t < 1; t += 0.0007) EXPECT_GT(path.sigma(t + 0.0001), path.sigma(t)) << t;
  const at::Tensor t = at::tensor({0.0, 0.0004, 0.25, 0.5003, 0.9999, 1.0}, at::kDouble);
  const auto [alpha, sigma] = path.alpha_sigma(t, 1);
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    EXPECT_NEAR(alpha[i].item<double>(), path.alpha(t[i].item<double>()), 1e-14);
    EXPECT_NEAR(sigma[i].item<double>(), path.sigma(t[i].item<double>()), 1e-13);
  }
}

TEST(Path, GetsNoisierWithTime) {
  for (const Path& path : all_paths())
    for (double t = 0.01; t < 1; t += 0.01) {
      EXPECT_LT(path.alpha(t), path.alpha(t - 0.01)) << name_of(path) << " at " << t;
      EXPECT_GT(path.sigma(t), path.sigma(t - 0.01)) << name_of(path) << " at " << t;
    }
}

TEST(Path, TimesOfABatchEqualSingleTimes) {
  at::manual_seed(1);
  const at::Tensor x0 = at::randn({5, 3, 4, 2}, at::kDouble), noise = at::randn({5, 3, 4, 2}, at::kDouble);
  const at::Tensor t = at::tensor({0.0, 0.1, 0.5, 0.9, 1.0}, at::kDouble);
  for (const Path& path : all_paths()) {
    const at::Tensor x = path.mix(x0, noise, t), answer = path.target(x0, noise);
    for (std::int64_t i = 0; i < 5; ++i) {
      const double time = t[i].item<double>();
      EXPECT_TRUE(at::allclose(x[i], path.mix(x0[i], noise[i], time), 1e-12, 1e-13)) << name_of(path);
      EXPECT_TRUE(at::allclose(path.predicted_x0(x, answer, t)[i], path.predicted_x0(x[i], answer[i], time),
                               1e-10, 1e-10));
      EXPECT_TRUE(at::allclose(path.predicted_noise(x, answer, t)[i],
                               path.predicted_noise(x[i], answer[i], time), 1e-12, 1e-12));
    }
  }
}

// The true target gives back the picture and the noise it was mixed from, at every time.
TEST(Path, ReadsItsOwnTarget) {
  at::manual_seed(2);
  const at::Tensor x0 = at::randn({3, 7}, at::kDouble), noise = at::randn({3, 7}, at::kDouble);
  for (const Path& path : all_paths())
    for (const double t : {0.0, 1e-4, 0.3, 0.7, 0.9999, 1.0}) {
      const at::Tensor x = path.mix(x0, noise, t), answer = path.target(x0, noise);
      EXPECT_TRUE(at::allclose(path.predicted_x0(x, answer, t), x0, 1e-9, 1e-10))
          << name_of(path) << " at " << t;
      if (path.prediction() == Prediction::x0 && t == 0) continue;  // a clean picture tells of no noise
      EXPECT_TRUE(at::allclose(path.predicted_noise(x, answer, t), noise, 1e-9, 1e-10))
          << name_of(path) << " at " << t;
    }
}

TEST(Path, KeepsTheDtypeOfThePictures) {
  const at::Tensor x0 = at::randn({2, 3}).to(at::kBFloat16), t = at::tensor({0.25f, 0.5f});
  for (const Path& path : all_paths()) {
    EXPECT_EQ(path.mix(x0, x0, t).scalar_type(), at::kBFloat16);
    EXPECT_EQ(path.predicted_x0(x0, x0, t).scalar_type(), at::kBFloat16);
  }
}

TEST(Path, IsFoundByName) {
  EXPECT_EQ(Path::named("flow"), Path::flow());
  EXPECT_EQ(Path::named("flow-x0"), Path::flow_x0());
  EXPECT_EQ(Path::named("epsilon"), Path::epsilon(Variance::linear));
  for (const Path& path : all_paths()) EXPECT_EQ(Path::named(path.name(), path.variance_name()), path);
  const auto message = [](std::string_view path, std::string_view variance) -> std::string {
    try {
      Path::named(path, variance);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(message("epsilom", ""), "Path: path: there is no \"epsilom\"; did you mean \"epsilon\"?");
  EXPECT_EQ(message("epsilon", "cosin"), "Path: variance: there is no \"cosin\"; did you mean \"cosine\"?");
  EXPECT_NE(message("flow", "linear").find("the path \"flow\" has none"), std::string::npos);
  EXPECT_NE(message("flow-x0", "linear").find("the path \"flow-x0\" has none"), std::string::npos);
  EXPECT_NE(message("", "").find("there is no \"\""), std::string::npos);
}

TEST(Path, RefusesTimesOutsideAndOtherShapes) {
  const at::Tensor x = at::randn({2, 3});
  for (const Path& path : all_paths()) {
    EXPECT_THROW(path.alpha(-0.1), Error);
    EXPECT_THROW(path.sigma(1.1), Error);
    EXPECT_THROW(path.x0_weights(std::nan("")), Error);
    EXPECT_THROW(path.mix(x, at::randn({2, 4}), 0.5), Error);
    EXPECT_THROW(path.mix(x, x, at::randn({3})), Error);
    EXPECT_THROW(path.predicted_x0(x, at::randn({2, 4}), 0.5), Error);
  }
}

}  // namespace
