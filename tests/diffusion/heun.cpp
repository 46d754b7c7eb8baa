// Heun: second order, the textbook's method on the flow path.
#include "tests/diffusion/judge.h"

namespace {

using namespace pom::diffusion;
using namespace pom::diffusion::testing;

TEST(Heun, ConvergesWithOrderTwo) {
  expect_order("heun", 2, 0.03);
}

TEST(Heun, IsTheTextbooksOnTheFlowPath) {
  const Path path = Path::flow();
  const Model model = perfect_model(plane(), path);
  const at::Tensor start = start_noise(4, {2}, at::kDouble);
  at::Tensor x = start.clone();
  for (int i = 0; i < 10; ++i) {
    const double t = 1 - i / 10.0, next = i == 9 ? 0 : 1 - (i + 1) / 10.0;
    const at::Tensor v = model(x, t);
    const at::Tensor w = i == 9 ? v : model(x.add(v, next - t), next);
    x.add_(v.add(w), (next - t) / 2);
  }
  EXPECT_LT(distance(sample(model, start, path, "heun", {.steps = 10}), x), 1e-13);
}

// Two evaluations at each inner time, one at the first, one at an end that can be evaluated, none at t = 0.
TEST(Heun, CountsItsEvaluations) {
  EXPECT_EQ(evaluations("heun", {.steps = 10}), 19);
  EXPECT_EQ(evaluations("heun", {.steps = 10, .t_end = 0.1}), 20);
  EXPECT_EQ(evaluations("heun", {.steps = 1}), 1);
  EXPECT_EQ(evaluation_times("heun", {.steps = 2}), (std::vector<double>{1, 0.5, 0.5}));
}

}  // namespace
