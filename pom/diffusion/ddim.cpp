// DDIM (Song et al. 2021): x' = α'·x0 + √(σ'² − s²)·ε + s·z with s² = eta² · the variance of DDPM's step.
// ε is that of the predicted x0, (x − α·x0)/σ, so that a clipped x0 moves the whole step: σ is positive
// wherever a model is evaluated, and √(σ'² − s²)/σ is at most 1.
#include <algorithm>
#include <cmath>

#include "pom/diffusion/arithmetic.h"
#include "pom/diffusion/posterior.h"
#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {
namespace {

void ddim(Trajectory& way) {
  const at::Tensor x0 = way.buffer();
  for (int i = 0; i < way.steps(); ++i) {
    way.predict(i, way.x, x0);
    const Level &now = way.level(i), &next = way.level(i + 1);
    const double fresh = way.eta() * std::sqrt(std::max(0.0, posterior(now, next).variance));
    const double kept = std::sqrt(std::max(0.0, next.sigma * next.sigma - fresh * fresh)) / now.sigma;
    if (fresh > 0)
      combine(way.x, {{kept, way.x}, {next.alpha - kept * now.alpha, x0}, {fresh, way.noise(i)}});
    else
      combine(way.x, {{kept, way.x}, {next.alpha - kept * now.alpha, x0}});
    way.done(i, x0);
  }
}

const RegisterSampler registered_ddim({
    .name = "ddim",
    .summary = "first order, deterministic; with eta up to 1 as stochastic as ddpm",
    .run = ddim,
    .takes_eta = true,
});

}  // namespace
}  // namespace pom::diffusion
