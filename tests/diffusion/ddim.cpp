// DDIM: first order without noise, and DDPM's chain with eta 1.
#include "tests/diffusion/judge.h"

#include "pom/base/error.h"

namespace {

using namespace pom::diffusion;
using namespace pom::diffusion::testing;

TEST(Ddim, ConvergesWithOrderOne) {
  expect_order("ddim", 1, 0.01);
}

TEST(Ddim, WithEtaOneIsDdpm) {
  for (const Path& path : all_paths()) {
    const Model model = perfect_model(plane(), path);
    const at::Tensor start = start_noise(16, {2}, at::kDouble);
    const StepNoise noise = step_noise(seeds_from(1, 16));
    const at::Tensor ddim = sample(model, start, path, "ddim", {.steps = 20, .eta = 1}, noise);
    EXPECT_LT(distance(ddim, sample(model, start, path, "ddpm", {.steps = 20}, noise)), 1e-10)
        << name_of(path);
    const at::Tensor half = sample(model, start, path, "ddim", {.steps = 20, .eta = 0.5}, noise);
    EXPECT_GT(distance(ddim, half), 1e-3) << name_of(path);
  }
}

TEST(Ddim, SamplesTheMixtureWithAnyEta) {
  for (const Path& path : {Path::flow(), Path::epsilon()})
    for (const double eta : {0.0, 0.5, 1.0}) {
      SCOPED_TRACE(name_of(path) + " eta " + std::to_string(eta));
      expect_line(sample_line("ddim", path, {.steps = 400, .eta = eta}, 20000), 0.02);
    }
}

// With clipping, ε follows the clipped x0: the whole step is that of a model which sees the clipped picture.
TEST(Ddim, ClipMovesTheWholeStep) {
  const Path path = Path::epsilon();
  const Mixture far = {{1, 0, {2.0, -3.0}}};
  const at::Tensor start = start_noise(3, {2}, at::kDouble);
  const Mixture clipped = {{1, 0, {1.5, -1.5}}};
  const SamplerOptions options{.steps = 5, .t_start = 0.8, .t_end = 0.1};
  SamplerOptions with_clip = options;
  with_clip.clamp = 1.5;
  EXPECT_LT(distance(sample(perfect_model(far, path), start, path, "ddim", with_clip),
                     sample(perfect_model(clipped, path), start, path, "ddim", options)),
            1e-12);
}

}  // namespace
