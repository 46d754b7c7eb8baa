// Tests of fits on the paper's figure of scaling, against numbers of scipy 1.17.1 (linregress, curve_fit).
#include "pom/eval/fits.h"

#include <cmath>
#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

const std::vector<double> work = {11.751, 46, 145.758, 214.184}, fid = {46.42, 24.09, 12.54, 8.78};

TEST(Fits, LineInTheLogarithm) {
  const LogFit fit = fit_log(work, fid);
  EXPECT_NEAR(fit.slope, -12.86353554261417, 1e-10);
  EXPECT_NEAR(fit.intercept, 76.47419081999777, 1e-10);
  EXPECT_NEAR(fit.r2, 0.9916399745137219 * 0.9916399745137219, 1e-12);
  EXPECT_THROW(fit_log(std::vector{1.0, 1.0}, std::vector{1.0, 2.0}), Error);
  EXPECT_THROW(fit_log(std::vector{0.0, 1.0}, std::vector{1.0, 2.0}), Error);
}

TEST(Fits, PowerLaw) {
  const PowerFit plain = fit_power(work, fid);  // whose floor would be negative
  EXPECT_EQ(plain.floor, 0);
  EXPECT_NEAR(plain.scale, 170.425717, 1e-4);
  EXPECT_NEAR(plain.exponent, 0.524988605, 1e-7);
  EXPECT_NEAR(plain.r2, 0.9957537618229777, 1e-9);
  const PowerFit bent = fit_power(work, std::vector{46.42, 30.0, 25.0, 24.0});
  EXPECT_NEAR(bent.floor, 21.51441271, 1e-4);
  EXPECT_NEAR(bent.scale, 173.42615848, 1e-2);
  EXPECT_NEAR(bent.exponent, 0.78765148, 1e-5);
  EXPECT_NEAR(bent.r2, 0.9999823894351678, 1e-9);
}

// Two runs at one place: their mean is the lower one in a quarter of the draws, the upper one in another.
TEST(Fits, RunsDrawnAgain) {
  const std::vector<std::vector<double>> runs = {{1, 3}, {10}};
  const auto difference = [](std::span<const double> means) { return means[1] - means[0]; };
  const Resampled interval = resample(runs, difference);
  EXPECT_EQ(interval.low, 7);
  EXPECT_EQ(interval.high, 9);
  double sum = 0;
  std::int64_t count = 0;
  resample(runs, [&](std::span<const double> means) { return ++count, sum += means[0]; });
  EXPECT_NEAR(sum / static_cast<double>(count), 2, 0.1);  // deviation of the mean: 0.016
  EXPECT_THROW(resample(std::vector<std::vector<double>>{{}}, difference), Error);
}

}  // namespace
}  // namespace pom::eval
