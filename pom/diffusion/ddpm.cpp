// DDPM (Ho et al. 2020): each step is drawn from the posterior of the forward chain, given the predicted x0.
#include <cmath>

#include "pom/diffusion/arithmetic.h"
#include "pom/diffusion/posterior.h"
#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {
namespace {

void ddpm(Trajectory& way) {
  const at::Tensor x0 = way.buffer();
  for (int i = 0; i < way.steps(); ++i) {
    way.predict(i, way.x, x0);
    const Posterior next = posterior(way.level(i), way.level(i + 1));
    if (next.variance > 0)
      combine(way.x, {{next.x, way.x}, {next.x0, x0}, {std::sqrt(next.variance), way.noise(i)}});
    else
      combine(way.x, {{next.x, way.x}, {next.x0, x0}});
    way.done(i, x0);
  }
}

const RegisterSampler registered_ddpm({
    .name = "ddpm",
    .aliases = {"ancestral"},
    .summary = "ancestral sampling, stochastic, many steps",
    .run = ddpm,
    .always_noise = true,
});

}  // namespace
}  // namespace pom::diffusion
