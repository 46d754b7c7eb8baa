// DPM-Solver++(2M) (Lu et al. 2022): with λ = ln(α/σ) and h = λ' − λ the exact solution is
//   x' = (σ'/σ)·x + α'·(1 − e^−h)·D,   α'·e^−h = σ'·α/σ,
// were the predicted x0 a constant D over the step. D is x0 extrapolated to the middle of the step from this
// and the last prediction; that is x0 alone (first order) where a step is infinitely long in λ: the one that
// leaves α = 0, the one after it, whose past is infinitely far, and the one that reaches σ = 0.
#include <cmath>
#include <utility>

#include "pom/diffusion/arithmetic.h"
#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {
namespace {

double lambda(const Level& level) {
  return std::log(level.alpha) - std::log(level.sigma);
}

// How much of (this prediction − the last one) is added to this one in step i.
double extrapolation(const Trajectory& way, int i) {
  if (i == 0) return 0;
  const double last = lambda(way.level(i)) - lambda(way.level(i - 1));
  const double next = lambda(way.level(i + 1)) - lambda(way.level(i));
  // Clamped variances may put neighbouring times on one level, where there is no slope to see.
  if (!std::isfinite(last) || !std::isfinite(next) || last <= 0) return 0;
  return next / (2 * last);
}

void dpmpp_2m(Trajectory& way) {
  at::Tensor x0 = way.buffer(), last = way.buffer();
  for (int i = 0; i < way.steps(); ++i) {
    way.predict(i, way.x, x0);
    const Level &now = way.level(i), &next = way.level(i + 1);
    const double kept = next.sigma / now.sigma, clean = next.alpha - kept * now.alpha;
    const double beyond = extrapolation(way, i);
    if (beyond != 0)
      combine(way.x, {{kept, way.x}, {clean * (1 + beyond), x0}, {-clean * beyond, last}});
    else
      combine(way.x, {{kept, way.x}, {clean, x0}});
    way.done(i, x0);
    std::swap(x0, last);
  }
}

const RegisterSampler registered_dpmpp_2m({
    .name = "dpm++2m",
    .aliases = {"dpmpp_2m", "dpm_solver++", "dpm-solver++(2m)", "dpmsolver++", "dpmsolverpp_2m", "dpm++"},
    .summary = "second order with one evaluation a step, deterministic",
    .run = dpmpp_2m,
});

}  // namespace
}  // namespace pom::diffusion
