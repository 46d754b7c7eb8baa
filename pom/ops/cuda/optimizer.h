// A step of AdamW over flat fp32 buffers on CUDA, with the average of the weights, in one pass.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/ops/cuda/weight_copies.h"

namespace pom::ops::cuda {

struct AdamW {
  at::Tensor values, gradients, moment1, moment2, average;  // (n), changed in place
  at::Tensor gradient_scale;                                // one value: what the gradients are multiplied by
  std::int64_t decayed = 0;                                 // values before this place decay
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double correction1 = 1, correction2 = 1;  // of the moments, which begin at zero
  double average_weight = 0;                // how much of the new values the average takes
  WeightTable copies;  // of values from the first to the last, written with them; or none
};

// Says whether it did the step: fp32 on CUDA, in a build with kernels.
bool adamw(const AdamW& step);

}  // namespace pom::ops::cuda
