#include "pom/eval/comparisons.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "pom/base/error.h"
#include "pom/eval/student.h"

namespace pom::eval {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity(),
                 no_number = std::numeric_limits<double>::quiet_NaN();

std::vector<double> paired_differences(std::span<const double> a, std::span<const double> b) {
  check(a.size() == b.size(), "paired: values: expected as many of both, got ", a.size(), " and ", b.size());
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
  return differences;
}

double standard_error(const MeanInterval& mean) {
  return mean.deviation / std::sqrt(static_cast<double>(mean.count));
}

// That a mean at 0 or above would be seen this far below 0. Values without spread leave no doubt.
double chance_of(double distance, const MeanInterval& mean) {
  if (mean.count < 2) return no_number;
  if (mean.deviation == 0) return distance < 0 ? 0 : 1;
  return student_cdf(distance / standard_error(mean), static_cast<double>(mean.count - 1));
}

}  // namespace

MeanInterval t_interval(std::span<const double> values, double confidence) {
  check(!values.empty(), "t interval: values: expected at least one, got none");
  check(confidence > 0 && confidence < 1, "t interval: confidence: expected 0 to 1, got ", confidence);
  MeanInterval result;
  result.count = std::ssize(values);
  const auto count = static_cast<double>(values.size());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  if (values.size() < 2) {
    result.low = -infinite, result.high = infinite;
    return result;
  }
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.deviation = std::sqrt(squares / (count - 1));
  const double half = student_quantile(0.5 + confidence / 2, count - 1) * standard_error(result);
  result.low = result.mean - half, result.high = result.mean + half;
  return result;
}

PairedTest paired_t(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> differences = paired_differences(a, b);
  PairedTest test{.difference = t_interval(differences), .t = no_number, .p = no_number};
  if (test.difference.count < 2 || (test.difference.deviation == 0 && test.difference.mean == 0)) return test;
  test.t = test.difference.mean / standard_error(test.difference);
  test.p = 2 * student_cdf(-std::abs(test.t), static_cast<double>(test.difference.count - 1));
  return test;
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return std::isnan(p[i]) ? infinite : p[i]; });
  std::vector<double> adjusted(p.size(), no_number);
  double largest = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const double value = p[order[rank]];
    if (std::isnan(value)) continue;
    largest = std::max(largest, std::min(1.0, static_cast<double>(p.size() - rank) * value));
    adjusted[order[rank]] = largest;
  }
  return adjusted;
}

Equivalence tost_paired(std::span<const double> a, std::span<const double> b, double margin) {
  check(margin > 0, "equivalence: margin: expected a number above 0, got ", margin);
  const std::vector<double> differences = paired_differences(a, b);
  Equivalence result{.difference = t_interval(differences, 0.9), .p = no_number};
  result.p = std::max(chance_of(-result.difference.mean - margin, result.difference),
                      chance_of(result.difference.mean - margin, result.difference));
  return result;
}

Equivalence not_above(std::span<const double> a, std::span<const double> b, double margin) {
  check(margin >= 0, "not above: margin: expected 0 or more, got ", margin);
  const std::vector<double> differences = paired_differences(a, b);
  Equivalence result{.difference = t_interval(differences, 0.9), .p = no_number};
  result.p = chance_of(result.difference.mean - margin, result.difference);
  return result;
}

double kendall_tau(std::span<const double> a, std::span<const double> b) {
  check(a.size() == b.size(), "kendall: values: expected as many of both, got ", a.size(), " and ", b.size());
  double agreeing = 0, pairs_a = 0, pairs_b = 0;  // pairs that are not tied
  const auto sign = [](double x) { return static_cast<double>((x > 0) - (x < 0)); };
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const double one = sign(a[i] - a[j]), other = sign(b[i] - b[j]);
      agreeing += one * other, pairs_a += one * one, pairs_b += other * other;
    }
  return pairs_a == 0 || pairs_b == 0 ? no_number : agreeing / std::sqrt(pairs_a * pairs_b);
}

}  // namespace pom::eval
