// Euler's method for du/dτ = (u − x0)/τ, the path as a flow (flow_form.h): u' = u + (τ' − τ)·(u − x0)/τ. Both
// x0 and ε stay what they are over a step, which is DDIM with eta 0 again.
#include "pom/diffusion/arithmetic.h"
#include "pom/diffusion/flow_form.h"
#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {
namespace {

void euler(Trajectory& way) {
  const at::Tensor x0 = way.buffer();
  for (int i = 0; i < way.steps(); ++i) {
    way.predict(i, way.x, x0);
    const FlowForm now = flow_form(way.level(i)), next = flow_form(way.level(i + 1));
    const double kept = next.tau / now.tau;
    combine(way.x, {{kept * next.scale / now.scale, way.x}, {(1 - kept) * next.scale, x0}});
    way.done(i, x0);
  }
}

const RegisterSampler registered_euler({
    .name = "euler",
    .summary = "first order, deterministic; the plain choice for flow models",
    .run = euler,
});

}  // namespace
}  // namespace pom::diffusion
