#include "pom/eval/sample_bias.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/eval/numpy_random.h"
#include "pom/eval/one_thread.h"

namespace pom::eval {
namespace {

constexpr std::int64_t tenths = 10, subsets_at_once = 8;  // subsets in memory

using Subset = std::function<at::Tensor()>;

std::vector<double> distances_of(const std::vector<Subset>& subsets, const DistanceOf& distance) {
  std::vector<double> found(subsets.size());
  each_in_one_thread(std::ssize(subsets), subsets_at_once, [&](std::int64_t i) {
    found[static_cast<std::size_t>(i)] = distance(subsets[static_cast<std::size_t>(i)]());
  });
  return found;
}

// The samples' numbers in another order, always the same: theirs may be that of their classes, which no half
// and no tenth may have more of than another.
at::Tensor mixed_order(std::int64_t count) {
  return at::tensor(NumpyRandom(static_cast<std::uint32_t>(infinity_seed)).permutation(count), at::kLong);
}

void add_halves(std::vector<Subset>& subsets, const at::Tensor& x, const at::Tensor& order) {
  for (const std::int64_t first : {0, 1})
    subsets.emplace_back(
        [&x, &order, first] { return x.index_select(0, order.slice(0, first, std::nullopt, 2)); });
}

void add_tenths(std::vector<Subset>& subsets, const at::Tensor& x, const at::Tensor& order) {
  for (std::int64_t i = 0; i < tenths; ++i)
    subsets.emplace_back(
        [&x, &order, i] { return x.index_select(0, (order.remainder(tenths) != i).nonzero().flatten()); });
}

// All but the last size, which is that of all.
void add_sizes(std::vector<Subset>& subsets, const at::Tensor& x) {
  NumpyRandom random(static_cast<std::uint32_t>(infinity_seed));
  const std::vector<std::int64_t> sizes = infinity_sizes(x.size(0));
  for (auto size = sizes.begin(); size + 1 != sizes.end(); ++size)
    subsets.emplace_back([&x, chosen = random.choice(x.size(0), *size)] {
      return x.index_select(0, at::tensor(chosen, at::kLong));
    });
}

// Where the line through (1/n, distance) meets 1/n = 0: least squares.
double at_infinity(const std::vector<std::int64_t>& sizes, const std::vector<double>& distances) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto n = static_cast<double>(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double inverse = 1 / static_cast<double>(sizes[i]);
    x += inverse / n, y += distances[i] / n;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double away = 1 / static_cast<double>(sizes[i]) - x;
    xx += away * away, xy += away * (distances[i] - y);
  }
  return y - xy / xx * x;
}

}  // namespace

double jackknife_deviation(std::span<const double> without) {
  const auto parts = static_cast<double>(without.size());
  double mean = 0, squares = 0;
  for (const double value : without) mean += value / parts;
  for (const double value : without) squares += (value - mean) * (value - mean);
  return std::sqrt(squares * (parts - 1) / parts);
}

std::vector<std::int64_t> infinity_sizes(std::int64_t count) {
  const double first = static_cast<double>(count) / 10, step = (static_cast<double>(count) - first) / 14;
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i + 1 < infinity_points; ++i)
    sizes.push_back(
        std::max<std::int64_t>(2, static_cast<std::int64_t>(first + step * static_cast<double>(i))));
  sizes.push_back(count);
  return sizes;
}

double unbiased_distance(const at::Tensor& features, const DistanceOf& distance) {
  const c10::NoGradGuard no_grad;
  check(features.dim() == 2 && features.size(0) >= 4,
        "unbiased_distance: features: expected (N, F) with N at least 4, got ", features.sizes());
  std::vector<Subset> subsets = {[&] { return features; }};
  const at::Tensor order = mixed_order(features.size(0));
  add_halves(subsets, features, order);
  const std::vector<double> found = distances_of(subsets, distance);
  return 2 * found[0] - (found[1] + found[2]) / 2;
}

SampledDistance sampled_distance(const at::Tensor& features, const DistanceOf& distance) {
  const c10::NoGradGuard no_grad;
  check(features.dim() == 2 && features.size(0) >= 2,
        "sampled_distance: features: expected (N, F) with N at least 2, got ", features.sizes());
  const std::int64_t count = features.size(0);
  const bool halves = count >= 4, many = count >= 2 * tenths;
  std::vector<Subset> subsets = {[&] { return features; }};
  const at::Tensor order = mixed_order(count);
  if (halves) add_halves(subsets, features, order);
  if (many) add_tenths(subsets, features, order);
  if (many) add_sizes(subsets, features);
  const std::vector<double> found = distances_of(subsets, distance);
  SampledDistance result{.all = found[0]};
  if (halves) result.unbiased = 2 * found[0] - (found[1] + found[2]) / 2;
  if (!many) return result;
  result.deviation = jackknife_deviation(std::span(found).subspan(3, tenths));
  std::vector<double> line(found.begin() + 3 + tenths, found.end());
  line.push_back(found[0]);
  result.infinity = at_infinity(infinity_sizes(count), line);
  return result;
}

}  // namespace pom::eval
