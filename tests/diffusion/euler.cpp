// Euler: first order, and the numbers of DDIM without noise.
#include "tests/diffusion/judge.h"

namespace {

using namespace pom::diffusion;
using namespace pom::diffusion::testing;

TEST(Euler, ConvergesWithOrderOne) {
  expect_order("euler", 1, 0.01);
}

TEST(Euler, IsTheTextbooksOnTheFlowPath) {
  const Path path = Path::flow();
  const Model model = perfect_model(plane(), path);
  const at::Tensor start = start_noise(4, {2}, at::kDouble);
  at::Tensor x = start.clone();
  for (int i = 0; i < 10; ++i) x.add_(model(x, 1 - i / 10.0), -0.1);
  EXPECT_LT(distance(sample(model, start, path, "euler", {.steps = 10}), x), 1e-13);
}

TEST(Euler, IsDdimWithoutNoise) {
  for (const Path& path : all_paths()) {
    const Model model = perfect_model(plane(), path);
    const at::Tensor start = start_noise(16, {2}, at::kDouble);
    const at::Tensor euler = sample(model, start, path, "euler", {.steps = 20});
    EXPECT_LT(distance(euler, sample(model, start, path, "ddim", {.steps = 20})), 1e-10) << name_of(path);
  }
}

}  // namespace
