#include "pom/eval/fits.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

void check_points(std::span<const double> x, std::span<const double> y, std::size_t least) {
  check(x.size() == y.size(), "fit: values: expected as many x as y, got ", x.size(), " and ", y.size());
  for (const double value : x) check(value > 0, "fit: x: expected numbers above 0, got ", value);
  const std::set<double> different(x.begin(), x.end());
  check(different.size() >= least, "fit: x: expected at least ", least, " different ones, got ",
        different.size());
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// y = a + b u, by least squares.
struct Line {
  double a = 0, b = 0;
};
Line line_through(std::span<const double> u, std::span<const double> y) {
  const double mean_u = mean_of(u), mean_y = mean_of(y);
  double product = 0, square = 0;
  for (std::size_t i = 0; i < u.size(); ++i) {
    product += (u[i] - mean_u) * (y[i] - mean_y);
    square += (u[i] - mean_u) * (u[i] - mean_u);
  }
  const double b = product / square;
  return {mean_y - b * mean_u, b};
}

double residual(std::span<const double> u, std::span<const double> y, const Line& line) {
  double sum = 0;
  for (std::size_t i = 0; i < u.size(); ++i) sum += std::pow(y[i] - line.a - line.b * u[i], 2);
  return sum;
}

double explained(std::span<const double> y, double rest) {
  double all = 0;
  const double mean = mean_of(y);
  for (const double value : y) all += (value - mean) * (value - mean);
  return all > 0 ? 1 - rest / all : 0;
}

// The best floor and scale for this exponent, and how far y is from them.
struct PowerTrial {
  PowerFit fit;
  double rest = 0;
};
PowerTrial power_trial(std::span<const double> x, std::span<const double> y, double exponent) {
  std::vector<double> u;
  for (const double value : x) u.push_back(std::pow(value / x[0], -exponent));  // of a size that sums well
  Line line = line_through(u, y);
  if (line.a < 0) {  // then the best is at the edge: no floor
    double product = 0, square = 0;
    for (std::size_t i = 0; i < u.size(); ++i) product += u[i] * y[i], square += u[i] * u[i];
    line = {0, product / square};
  }
  return {{line.a, line.b * std::pow(x[0], exponent), exponent}, residual(u, y, line)};
}

std::uint64_t mixed(std::uint64_t z) {  // splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

LogFit fit_log(std::span<const double> x, std::span<const double> y) {
  check_points(x, y, 2);
  std::vector<double> u;
  for (const double value : x) u.push_back(std::log(value));
  const Line line = line_through(u, y);
  return {line.a, line.b, explained(y, residual(u, y, line))};
}

PowerFit fit_power(std::span<const double> x, std::span<const double> y) {
  check_points(x, y, 3);
  constexpr double least = 0.01, most = 8, step = 1.05;
  PowerTrial best = power_trial(x, y, least);
  for (double exponent = least * step; exponent <= most; exponent *= step)
    if (const PowerTrial trial = power_trial(x, y, exponent); trial.rest < best.rest) best = trial;
  double low = best.fit.exponent / step, high = best.fit.exponent * step;  // between neighbours, by thirds
  for (int i = 0; i < 100; ++i) {
    const double third = (high - low) / 3, one = low + third, other = high - third;
    (power_trial(x, y, one).rest < power_trial(x, y, other).rest ? high : low) =
        power_trial(x, y, one).rest < power_trial(x, y, other).rest ? other : one;
  }
  best = power_trial(x, y, 0.5 * (low + high));
  best.fit.r2 = explained(y, best.rest);
  return best.fit;
}

Resampled resample(std::span<const std::vector<double>> runs,
                   const std::function<double(std::span<const double> means)>& value, std::int64_t draws) {
  for (const std::vector<double>& place : runs)
    check(!place.empty(), "resample: runs: expected at least one at each place, got none");
  check(!runs.empty() && draws >= 1, "resample: expected runs and at least one draw, got ", runs.size(),
        " places and ", draws, " draws");
  std::vector<double> values;
  std::uint64_t counter = 0;
  for (std::int64_t draw = 0; draw < draws; ++draw) {
    std::vector<double> means;
    for (const std::vector<double>& place : runs) {
      double sum = 0;
      for (std::size_t i = 0; i < place.size(); ++i)
        sum += place[mixed(++counter * 0x9e3779b97f4a7c15ull) % place.size()];
      means.push_back(sum / static_cast<double>(place.size()));
    }
    values.push_back(value(means));
  }
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(draws - 1))];
  };
  return {at(0.025), at(0.975)};
}

}  // namespace pom::eval
