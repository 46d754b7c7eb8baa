// What a few runs of each kind can say: means with their intervals, differences between runs of the same
// seed, corrections for asking several times, equivalence within a margin, agreement of rankings. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pom::eval {

// A mean, and where the true one lies in so many of 100 cases (Student's t). Of a single value the interval
// is everything.
struct MeanInterval {
  double mean = 0, low = 0, high = 0;
  double deviation = 0;  // of the values, with N - 1
  std::int64_t count = 0;
};
MeanInterval t_interval(std::span<const double> values, double confidence = 0.95);

// Values of the same place belong together: runs of one seed. Not a number where all differences are 0, or
// where there are fewer than two.
struct PairedTest {
  MeanInterval difference;  // a - b
  double t = 0, p = 0;      // two-sided
};
PairedTest paired_t(std::span<const double> a, std::span<const double> b);

// The p-values of several tests, each so large that one may compare it with the level of all of them.
std::vector<double> holm(std::span<const double> p);

// Whether a - b lies within -margin to margin: two one-sided tests, p the larger of theirs. The interval that
// belongs to a level of 5 % is that of 90 %.
struct Equivalence {
  MeanInterval difference;
  double p = 0;
};
Equivalence tost_paired(std::span<const double> a, std::span<const double> b, double margin);

// Whether a - b lies below the margin: one one-sided test, "not worse by more than that".
Equivalence not_above(std::span<const double> a, std::span<const double> b, double margin);

// How well two rankings of the same things agree, -1 to 1, ties counted as Kendall's tau-b does; not a number
// where all values of one are equal.
double kendall_tau(std::span<const double> a, std::span<const double> b);

}  // namespace pom::eval
