// DPM-Solver++(2M): second order, exact for a single Gaussian point, first order at the infinite ends.
#include "tests/diffusion/judge.h"

namespace {

using namespace pom::diffusion;
using namespace pom::diffusion::testing;

TEST(Dpmpp2m, ConvergesWithOrderTwo) {
  expect_order("dpm++2m", 2, 0.05);
}

// A model that always sees the same picture is solved exactly, in however few steps.
TEST(Dpmpp2m, IsExactForOnePicture) {
  const Mixture point = {{1, 0, {0.3, -0.7}}};
  for (const Path& path : all_paths())
    for (const int steps : {1, 2, 3, 7}) {
      const SamplerOptions options{.steps = steps, .t_start = 0.9, .t_end = 0.2};
      const at::Tensor noise = start_noise(5, {2}, at::kDouble);
      at::Tensor picture = at::empty_like(noise);
      picture.select(1, 0).fill_(0.3);
      picture.select(1, 1).fill_(-0.7);
      const at::Tensor out =
          sample(perfect_model(point, path), path.mix(picture, noise, 0.9), path, "dpm++2m", options);
      EXPECT_LT(distance(out, path.mix(picture, noise, 0.2)), 1e-12) << name_of(path);
    }
}

// The first step and, where it is infinitely long in ln(α/σ), the second, and the last onto σ = 0 are DDIM's.
TEST(Dpmpp2m, IsFirstOrderWhereAStepIsInfinite) {
  const Path path = Path::flow();
  const Model model = perfect_model(plane(), path);
  const at::Tensor start = start_noise(5, {2}, at::kDouble);
  const auto solved = [&](std::string_view sampler, int steps) {
    return sample(model, start, path, sampler, {.steps = steps});
  };
  EXPECT_LT(distance(solved("dpm++2m", 3), solved("ddim", 3)), 1e-14);
  EXPECT_GT(distance(solved("dpm++2m", 4), solved("ddim", 4)), 1e-3);
}

TEST(Dpmpp2m, BeatsDdimWithTheSameNumberOfEvaluations) {
  for (const Path& path : all_paths()) {
    const at::Tensor exact = exact_solution(path);
    EXPECT_LT(distance(solve("dpm++2m", path, 32), exact), 0.5 * distance(solve("ddim", path, 32), exact))
        << name_of(path);
  }
}

}  // namespace
