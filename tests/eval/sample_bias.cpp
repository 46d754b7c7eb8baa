// What is done against the bias of few samples, on samples whose distance is known.
#include "pom/eval/sample_bias.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/base/error.h"
#include "pom/eval/frechet.h"
#include "pom/eval/one_thread.h"

namespace pom::eval {
namespace {

constexpr std::int64_t features = 8, samples = 400, repetitions = 24;

// A reference of variances 1, and samples of variances 1.5 that are off by 0.1 in each feature.
const FrechetReference& reference() {
  static const FrechetReference r({at::zeros({features}, at::kDouble), at::eye(features, at::kDouble)});
  return r;
}
at::Tensor drawn(std::int64_t count) {
  return at::randn({count, features}, at::kDouble) * std::sqrt(1.5) + 0.1;
}
double truth() {
  const double roots = std::sqrt(1.5) - 1;
  return features * (0.01 + roots * roots);
}
double distance(const at::Tensor& x) {
  return reference().to(x);
}

struct Spread {
  double mean = 0, deviation = 0;
};
Spread spread_of(const std::vector<double>& values) {
  Spread s;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) s.mean += v / n;
  for (const double v : values) s.deviation += (v - s.mean) * (v - s.mean) / (n - 1);
  s.deviation = std::sqrt(s.deviation);
  return s;
}

TEST(SampledDistance, HasNoBiasWhereItSaysSo) {
  at::manual_seed(7);
  std::vector<double> plain, halves, infinity, deviations;
  for (std::int64_t i = 0; i < repetitions; ++i) {
    const SampledDistance d = sampled_distance(drawn(samples), distance);
    plain.push_back(d.all);
    halves.push_back(d.unbiased.value());
    infinity.push_back(d.infinity.value());
    deviations.push_back(d.deviation.value());
  }
  const auto away = [](const std::vector<double>& values) {  // from the truth, in deviations of the mean
    const Spread s = spread_of(values);
    return (s.mean - truth()) / (s.deviation / std::sqrt(static_cast<double>(repetitions)));
  };
  EXPECT_GT(away(plain), 4);  // as it is everywhere
  EXPECT_LT(std::abs(away(halves)), 3);
  EXPECT_LT(std::abs(away(infinity)), 3);
  const double told = spread_of(deviations).mean, seen = spread_of(plain).deviation;
  EXPECT_GT(told, seen / 1.7);
  EXPECT_LT(told, seen * 1.7);
}

TEST(SampledDistance, AtInfinityIsTheEndOfALine) {
  at::manual_seed(8);
  const auto line = [](const at::Tensor& x) { return 2.5 + 3 / static_cast<double>(x.size(0)); };
  const SampledDistance d = sampled_distance(drawn(200), line);
  EXPECT_NEAR(*d.infinity, 2.5, 1e-12);
  EXPECT_NEAR(*d.unbiased, 2.5, 1e-12);
  EXPECT_EQ(d.all, 2.5 + 3. / 200);
}

// Every second sample is of another class: halves by their places would be one class each.
TEST(SampledDistance, MixesWhatIsInOrder) {
  const at::Tensor x = at::arange(400, at::kDouble).remainder(2).mul(2).sub(1).unsqueeze(1);
  const auto square = [](const at::Tensor& y) { return y.mean().square().item<double>(); };
  const SampledDistance d = sampled_distance(x, square);
  EXPECT_EQ(d.all, 0);
  EXPECT_GT(*d.unbiased, -0.1);  // of two classes apart -1
  EXPECT_EQ(unbiased_distance(x, square), *d.unbiased);
}

TEST(SampledDistance, OfFewSamplesHasLess) {
  const SampledDistance two = sampled_distance(drawn(3), distance),
                        four = sampled_distance(drawn(4), distance);
  EXPECT_FALSE(two.unbiased || two.deviation || two.infinity);
  EXPECT_TRUE(four.unbiased && !four.deviation && !four.infinity);
  EXPECT_THROW(sampled_distance(drawn(1), distance), Error);
}

TEST(SampledDistance, SizesGoFromATenthToAll) {
  const std::vector<std::int64_t> sizes = infinity_sizes(50'000);
  ASSERT_EQ(sizes.size(), 15u);
  EXPECT_EQ(sizes.front(), 5'000);
  EXPECT_EQ(sizes.back(), 50'000);
  EXPECT_EQ(sizes[7], 27'500);
  EXPECT_EQ(infinity_sizes(20).front(), 2);
}

TEST(SampledDistance, HasTheBitsOfAnyNumberOfThreads) {
  at::manual_seed(9);
  const at::Tensor x = at::randn({400, 300}, at::kDouble);  // large enough for LAPACK to share it out
  const int before = at::get_num_threads();
  std::vector<SampledDistance> found;
  for (const int threads : {1, 2, 4}) {
    at::set_num_threads(threads);
    std::optional<FrechetReference> r;
    in_one_thread([&] {
      r.emplace(Gaussian{at::zeros({300}, at::kDouble), at::diag(at::linspace(0.5, 2, 300, at::kDouble))});
    });
    found.push_back(sampled_distance(x, [&](const at::Tensor& y) { return r->to(fit_gaussian(y)); }));
  }
  at::set_num_threads(before);
  for (const SampledDistance& d : found) {
    EXPECT_EQ(d.all, found[0].all);
    EXPECT_EQ(*d.infinity, *found[0].infinity);
    EXPECT_EQ(*d.deviation, *found[0].deviation);
  }
}

}  // namespace
}  // namespace pom::eval
