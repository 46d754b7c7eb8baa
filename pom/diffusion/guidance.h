// Classifier-free guidance: the conditional answer c, pushed away from the unconditional one u. Both come out
// of one batch. B pictures of any shape (B, …).
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/sampler.h"

namespace pom::diffusion {

// out = u + scale·(c − u), the same as c + ω(c − u) with ω = scale − 1. It acts where from ≤ t ≤ to, the ends
// with them although a grid's times are rounded (1 − 0.9 is less than 0.1); elsewhere, and with scale 1, the
// answer is c and u is never computed.
struct Guidance {
  double scale = 1;
  double from = 0, to = 1;
  std::int64_t channels = 0;  // the first so many are led, the others are c's; 0: all of them

  static Guidance omega(double omega) { return {.scale = 1 + omega}; }
  bool acts_at(double t) const {
    constexpr double rounding = 1e-9;
    return scale != 1 && t >= from - rounding && t <= to + rounding;
  }
};

// Answers for B pictures at one time: B rows, the conditional ones, or with `both` 2B rows, the conditional
// ones followed by the unconditional ones.
using PairModel = std::function<at::Tensor(const at::Tensor& x, double t, bool both)>;

// The guided model, which samplers take. Throws pom::Error where the guidance makes no sense.
Model guide(PairModel model, const Guidance& guidance);

// The paper's rule for pictures of another size than the model's own, s0: ω = 4·√(width·height)/s0.
double auto_omega(double width, double height, double s0);

}  // namespace pom::diffusion
