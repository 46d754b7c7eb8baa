// One step of the Markov chain that turns a picture into noise, seen backwards: what is known of x at a less
// noisy level from x at a noisier one and x0. Shared by ddpm and ddim.
#pragma once

#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {

// Normal, with mean x·(noisy pictures) + x0·(clean pictures).
struct Posterior {
  double x, x0, variance;
};

// From q(noisy | clean) = N(a·clean, σ² − a²·σ'²), a = α/α'. Nothing is divided by α, which may be 0 at t
// = 1.
inline Posterior posterior(const Level& noisy, const Level& cleaner) {
  const double a = noisy.alpha / cleaner.alpha;
  const double total = noisy.sigma * noisy.sigma, rest = cleaner.sigma * cleaner.sigma;
  const double added = total - a * a * rest;
  return {a * rest / total, cleaner.alpha * added / total, rest * added / total};
}

}  // namespace pom::diffusion
