// Functions of the mathematical library that drawings need, out of sums and products alone: libraries differ
// in the last bit of theirs, and a drawing has to be the same everywhere. Built without contraction.
#pragma once

namespace pom::data::exact {

inline constexpr double pi = 3.14159265358979323846;

struct Direction {
  double cosine, sine;
};

// Within 1e-14 of both, for |angle| < 1e6: turned by quarters into [-π/4, π/4], then Taylor's series.
Direction direction(double angle);

// 2^u for 0 <= u <= 1, within 1e-14.
double power_of_two(double u);

}  // namespace pom::data::exact
