// AdamW with decoupled weight decay, the clip of the gradient and the average of weights, in one pass over
// the flat parameters; with kind "muon" the matrices between layers take another step (muon.h).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/train/parameters.h"
#include "pom/train/recipe.h"

namespace pom::train {

class Optimizer {
 public:
  Optimizer(Parameters& parameters, const OptimizerConfig& config);

  // The norm of all gradients, a scalar on the device.
  at::Tensor gradient_norm() const;

  // One update, the `update`-th (from 1), with gradients scaled by min(1, clip/(norm + 1e-6)). The average
  // becomes decay·average + (1 − decay)·weights, or stays where average is false.
  void step(const at::Tensor& norm, double lr, std::int64_t update, bool average, double decay);

  at::Tensor moment1, moment2, ema;  // laid out like the parameters; muon leaves its part of moment2 at 0

 private:
  at::Tensor clip_scale(const at::Tensor& norm) const;  // a scalar on the device

  Parameters& parameters_;
  OptimizerConfig config_;
};

}  // namespace pom::train
