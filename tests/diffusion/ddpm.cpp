// DDPM: its samples have the mixture's moments, on every path.
#include "tests/diffusion/judge.h"

namespace {

using namespace pom::diffusion;
using namespace pom::diffusion::testing;

// 20,000 samples know a mean to 0.007 and a share to 0.003; the rest of the tolerance is for 400 steps.
TEST(Ddpm, SamplesTheMixture) {
  for (const Path& path : all_paths()) {
    SCOPED_TRACE(name_of(path));
    expect_line(sample_line("ddpm", path, {.steps = 400}, 20000), 0.02);
  }
}

// One step of the chain is the posterior: from x at t and a known x0, mean and variance at s by direct
// calculation.
TEST(Ddpm, StepsHaveThePosteriorsMoments) {
  const Mixture point = {{1, 0, {0.5}}};
  const std::int64_t count = 40000;
  for (const Path& path : all_paths()) {
    const double t = 0.7, s = 0.4;
    const at::Tensor x = at::empty({count, 1}, at::kDouble).fill_(0.9);
    const at::Tensor out =
        sample(perfect_model(point, path), x, path, "ddpm", {.steps = 1, .t_start = t, .t_end = s},
               step_noise(seeds_from(1, static_cast<std::size_t>(count))));
    // Product of the normals q(x_s | x0) and, as a function of x_s, q(x_t | x_s).
    const double a = path.alpha(t) / path.alpha(s);
    const double prior = path.sigma(s) * path.sigma(s);
    const double added = path.sigma(t) * path.sigma(t) - a * a * prior;
    const double variance = 1 / (1 / prior + a * a / added);
    const double mean = variance * (path.alpha(s) * 0.5 / prior + a * 0.9 / added);
    const Statistics found = statistics_of(out);
    EXPECT_NEAR(found.mean, mean, 5 * std::sqrt(variance / count)) << name_of(path);
    EXPECT_NEAR(found.variance, variance, 5 * variance * std::sqrt(2.0 / count)) << name_of(path);
  }
}

}  // namespace
