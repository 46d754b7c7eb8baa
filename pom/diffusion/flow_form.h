// Any path x = α·x0 + σ·ε is the flow u = (1 − τ)·x0 + τ·ε in other units: u = x/(α + σ), τ = σ/(α + σ).
// There the equation to solve is du/dτ = ε − x0 = (u − x0)/τ, bounded at both ends, whereas in t it is
// singular at t = 1 for ε paths, and in σ/α (the variable of EDM) the first step of a uniform grid is
// hundreds of units long. On the flow path itself u = x and τ = t. Shared by euler and heun.
#pragma once

#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {

struct FlowForm {
  double scale, tau;  // x = scale·u
};

inline FlowForm flow_form(const Level& level) {
  const double scale = level.alpha + level.sigma;
  return {scale, level.sigma / scale};
}

}  // namespace pom::diffusion
