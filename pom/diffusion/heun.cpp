// Heun's method for du/dτ = v = (u − x0)/τ, the path as a flow (flow_form.h): a step of Euler's to û, then
// u' = u + (τ' − τ)·(v + v̂)/2 with v̂ from a second evaluation at û. Where the step ends at τ' = 0 there is no
// v̂, and Euler's step stands.
#include "pom/diffusion/arithmetic.h"
#include "pom/diffusion/flow_form.h"
#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {
namespace {

// û is linear in u and x0, so v̂ is in u, x0 and the second prediction:
// v̂ = (û − x̂0)/τ' = u/τ + (1/τ' − 1/τ)·x0 − x̂0/τ'.
void correct(Trajectory& way, const FlowForm& now, const FlowForm& next, const at::Tensor& x0,
             const at::Tensor& second) {
  const double half = (next.tau - now.tau) / 2;
  const double u = 1 + 2 * half / now.tau;
  const double first = half * (1 / next.tau - 2 / now.tau);
  combine(way.x, {{u * next.scale / now.scale, way.x},
                  {first * next.scale, x0},
                  {-half / next.tau * next.scale, second}});
}

void heun(Trajectory& way) {
  const at::Tensor x0 = way.buffer(), second = way.buffer(), guess = way.buffer();
  for (int i = 0; i < way.steps(); ++i) {
    way.predict(i, way.x, x0);
    const FlowForm now = flow_form(way.level(i)), next = flow_form(way.level(i + 1));
    const double kept = next.tau / now.tau;
    combine(guess, {{kept * next.scale / now.scale, way.x}, {(1 - kept) * next.scale, x0}});
    if (next.tau > 0) {
      way.predict(i + 1, guess, second);
      correct(way, now, next, x0, second);
    } else {
      way.x.copy_(guess);
    }
    way.done(i, x0);
  }
}

std::vector<double> times(std::span<const double> grid) {
  std::vector<double> times;
  for (std::size_t i = 0; i + 1 < grid.size(); ++i) {
    times.push_back(grid[i]);
    if (grid[i + 1] > 0) times.push_back(grid[i + 1]);
  }
  return times;
}

const RegisterSampler registered_heun({
    .name = "heun",
    .summary = "second order with two evaluations a step, deterministic; the paper's choice for flow models",
    .run = heun,
    .times = times,
});

}  // namespace
}  // namespace pom::diffusion
