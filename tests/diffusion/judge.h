// What the tests of single samplers share: every path, the observed order of convergence, statistics of many
// samples of mixture.h's line().
#pragma once

#include "tests/diffusion/mixture.h"
#include <cmath>
#include <gtest/gtest.h>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "pom/diffusion/arithmetic.h"
#include "pom/diffusion/noise.h"
#include "pom/diffusion/sampler.h"

namespace pom::diffusion::testing {

inline std::vector<Path> all_paths() {
  return {Path::flow(),
          Path::flow_x0(),
          Path::epsilon(Variance::linear),
          Path::epsilon(Variance::sine),
          Path::epsilon(Variance::cosine),
          Path::epsilon(Variance::sigmoid)};
}

inline std::string name_of(const Path& path) {
  return std::string(path.name()) + " " + std::string(path.variance_name());
}

inline std::vector<std::uint64_t> seeds_from(std::uint64_t first, std::size_t count) {
  std::vector<std::uint64_t> seeds(count);
  std::iota(seeds.begin(), seeds.end(), first);
  return seeds;
}

inline at::Tensor start_noise(std::int64_t count, std::vector<std::int64_t> shape, at::ScalarType type,
                              std::uint64_t seed = 1) {
  shape.insert(shape.begin(), count);
  at::Tensor x = at::empty(shape, at::TensorOptions().dtype(type));
  fill_latents(x, seeds_from(seed, static_cast<std::size_t>(count)));
  return x;
}

inline double distance(const at::Tensor& a, const at::Tensor& b) {
  return a.to(at::kDouble).sub(b.to(at::kDouble)).norm().item<double>();
}

// Solutions at t = 0.05 from the same points at t = 0.95, with `steps` steps.
inline at::Tensor solve(std::string_view sampler, const Path& path, int steps) {
  const SamplerOptions options{.steps = steps, .t_start = 0.95, .t_end = 0.05};
  return sample(perfect_model(plane(), path), start_noise(8, {2}, at::kDouble), path, sampler, options);
}

// Accurate to 1e-10 and better: Heun's error goes with the square of the step, so two solutions tell its
// limit.
inline at::Tensor exact_solution(const Path& path) {
  const at::Tensor fine = solve("heun", path, 4096), coarse = solve("heun", path, 2048);
  combine(fine, {{4.0 / 3, fine}, {-1.0 / 3, coarse}});
  return fine;
}

// p where the error goes with steps^-p, on every path.
inline void expect_order(std::string_view sampler, double order, double tolerance) {
  for (const Path& path : all_paths()) {
    const at::Tensor exact = exact_solution(path);
    const double coarse = distance(solve(sampler, path, 256), exact);
    const double fine = distance(solve(sampler, path, 512), exact);
    EXPECT_NEAR(std::log2(coarse / fine), order, tolerance) << sampler << " on " << name_of(path);
    EXPECT_LT(fine, order > 1 ? 1e-3 : 0.1) << sampler << " on " << name_of(path);
  }
}

struct Statistics {
  double mean, variance, share;  // of the second component
};

inline Statistics statistics_of(const at::Tensor& samples) {
  const at::Tensor x = samples.to(at::kDouble);
  return {x.mean().item<double>(), x.var().item<double>(), x.gt(0.3).to(at::kDouble).mean().item<double>()};
}

// Those of line(): its components are 5.5 and 8 standard deviations from 0.3, so the share is the weight.
inline void expect_line(const Statistics& found, double tolerance) {
  const double mean = 0.7 * -0.8 + 0.3 * 1.1;
  const double variance = 0.7 * (0.04 + 0.64) + 0.3 * (0.01 + 1.21) - mean * mean;
  EXPECT_NEAR(found.mean, mean, tolerance);
  EXPECT_NEAR(found.variance, variance, tolerance);
  EXPECT_NEAR(found.share, 0.3, tolerance / 2);
}

inline Statistics sample_line(std::string_view sampler, const Path& path, const SamplerOptions& options,
                              std::int64_t count) {
  const at::Tensor x = start_noise(count, {1}, at::kDouble, 1000);
  return statistics_of(sample(perfect_model(line(), path), x, path, sampler, options,
                              step_noise(seeds_from(1000, static_cast<std::size_t>(count)))));
}

}  // namespace pom::diffusion::testing
