#include "pom/data/exact_math.h"

#include <cmath>
#include <cstdint>

namespace pom::data::exact {
namespace {

double sine_series(double x) {
  const double t = x * x;
  double sum = 1.0;
  for (int n = 16; n >= 2; n -= 2) sum = 1.0 - sum * t / (n * (n + 1));
  return sum * x;
}

double cosine_series(double x) {
  const double t = x * x;
  double sum = 1.0;
  for (int n = 17; n >= 1; n -= 2) sum = 1.0 - sum * t / (n * (n + 1));
  return sum;
}

}  // namespace

Direction direction(double angle) {
  const double quarters = std::floor(angle * (2.0 / pi) + 0.5);
  const double rest = angle - quarters * (pi / 2);
  const double c = cosine_series(rest), s = sine_series(rest);
  switch (static_cast<std::int64_t>(quarters) & 3) {
    case 0:
      return {c, s};
    case 1:
      return {-s, c};
    case 2:
      return {-c, -s};
    default:
      return {s, -c};
  }
}

double power_of_two(double u) {
  const double x = u * 0.69314718055994530942;
  double sum = 1.0;
  for (int n = 18; n >= 1; --n) sum = 1.0 + sum * x / n;
  return sum;
}

}  // namespace pom::data::exact
