// Curves through a few means: a line in the logarithm and a power law with a floor, and how sure their slopes
// are, by drawing the runs again. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace pom::eval {

// y = intercept + slope · ln x, by least squares; x above 0, at least two of them different.
struct LogFit {
  double intercept = 0, slope = 0;
  double r2 = 0;  // share of the variance of y that it explains
};
LogFit fit_log(std::span<const double> x, std::span<const double> y);

// y = floor + scale · x^-exponent with a floor of 0 or more, by least squares of y; at least three different
// x above 0.
struct PowerFit {
  double floor = 0, scale = 0, exponent = 0;
  double r2 = 0;
};
PowerFit fit_power(std::span<const double> x, std::span<const double> y);

// Runs of each place are drawn again, with replacement, and `value` is computed of their means: what lies
// between the 2.5th and the 97.5th percentile. The draws are the same on every call.
struct Resampled {
  double low = 0, high = 0;
};
Resampled resample(std::span<const std::vector<double>> runs,
                   const std::function<double(std::span<const double> means)>& value,
                   std::int64_t draws = 2000);

}  // namespace pom::eval
