// What a distance owes to the number of samples: its bias, which falls as 1/N, and its deviation. N samples.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::eval {

// Of features (n, F) to something that stays the same. Called from several threads, each of which is alone
// with its linear algebra.
using DistanceOf = std::function<double(const at::Tensor& features)>;

struct SampledDistance {
  double all = 0;
  std::optional<double> deviation = {};  // by the jackknife over tenths; of at least 20 samples
  std::optional<double> unbiased = {};   // twice that of all less the mean of both halves; of at least 4
  std::optional<double> infinity = {};   // of a line in 1/n through sizes n, its value at 0; of at least 20
};

// Bits that depend on the features alone and not on the number of threads.
SampledDistance sampled_distance(const at::Tensor& features, const DistanceOf& distance);

// `unbiased` alone, in a ninth of the time; of at least 4.
double unbiased_distance(const at::Tensor& features, const DistanceOf& distance);

// Of a number, from the numbers without each part of the samples in turn.
double jackknife_deviation(std::span<const double> without);

// 15 sizes from N/10 to N, evenly; each is drawn without replacement with numpy's RandomState of this seed.
inline constexpr std::int64_t infinity_points = 15, infinity_seed = 2020;
std::vector<std::int64_t> infinity_sizes(std::int64_t count);

}  // namespace pom::eval
