// at::linear for weights of which somebody keeps copies (pom/ops/weight_copies.h): what the networks with
// attention multiply with outside of the branches of training_branch.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace pom::ops {

// x W^T + b: x (…, in), weight (out, in), bias (out) or undefined. Under autocast with gradients, and where
// there is a copy of the weight, with the copy in place of a cast; the weight's gradient then is summed in
// fp32 and not rounded to the lower precision on its way. Otherwise it is at::linear.
at::Tensor lowered_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace pom::ops
