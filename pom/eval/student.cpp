#include "pom/eval/student.h"

#include <cmath>
#include <limits>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

// Term m of the continued fraction (even and odd ones have other forms), as Lentz's rule takes it.
double beta_term(double a, double b, double x, int index) {
  const double m = index / 2;
  if (index % 2 == 0) return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
  return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
}

double beta_fraction(double a, double b, double x) {
  constexpr double tiny = 1e-300, precise = 1e-16;
  constexpr int most = 2000;
  double c = 1, d = 0, value = 1;
  for (int index = 1; index <= most; ++index) {
    const double term = beta_term(a, b, x, index);
    d = 1 + term * d;
    c = 1 + term / c;
    d = 1 / (std::abs(d) < tiny ? tiny : d);
    if (std::abs(c) < tiny) c = tiny;
    value *= c * d;
    if (std::abs(c * d - 1) < precise) break;
  }
  return 1 / value;
}

}  // namespace

double incomplete_beta(double a, double b, double x) {
  check(a > 0 && b > 0, "incomplete beta: a, b: expected numbers above 0, got ", a, " and ", b);
  check(x >= 0 && x <= 1, "incomplete beta: x: expected 0 to 1, got ", x);
  if (x == 0 || x == 1) return x;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  // The fraction is quick on one side of the mean; the other side is 1 minus it.
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double student_cdf(double t, double degrees) {
  check(degrees > 0, "student: degrees: expected a number above 0, got ", degrees);
  check(!std::isnan(t), "student: t: expected a number, got none");
  if (std::isinf(t)) return t > 0 ? 1 : 0;
  const double tail = 0.5 * incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
  return t > 0 ? 1 - tail : tail;
}

double student_quantile(double p, double degrees) {
  check(p > 0 && p < 1, "student: p: expected a number between 0 and 1, got ", p);
  if (p > 0.5) return -student_quantile(1 - p, degrees);
  double low = -1, high = 0;
  while (student_cdf(low, degrees) > p) low *= 2;
  while (high - low > std::numeric_limits<double>::epsilon() * std::abs(low)) {
    const double middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) break;
    (student_cdf(middle, degrees) > p ? high : low) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace pom::eval
