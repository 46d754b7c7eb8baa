// The parts of a block around its products, with gradients, in one pass over memory each: CPU kernels, CUDA
// kernels, and composed operations for what neither covers. B pictures, N tokens, d width. Gradients of
// second order and forward mode go through the composed operations.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

namespace pom::ops {

// layer_norm(x) * (1 + scale) + shift without weights of its own: x (B, N, d); scale, shift (B, d).
// Under autocast the result is of the lower precision, whatever x is; sums are fp32 (fp64 for fp64).
at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, double eps);

// x + y * (base + gate): x, y (B, N, d); gate (B, d). The result has the dtype of x.
at::Tensor gated_add(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate, double base);

// The one after the other, in one pass: the sum, and its modulated norm.
std::pair<at::Tensor, at::Tensor> gated_add_norm(const at::Tensor& x, const at::Tensor& y,
                                                 const at::Tensor& gate, double base, const at::Tensor& scale,
                                                 const at::Tensor& shift, double eps);

// gelu(x W_up + b_up) W_down + b_down, exact GELU: x (B, N, in), weights (hidden, in) and (out, hidden) as
// torch::nn::Linear has them. Under autocast all of it is of the lower precision.
at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& up, const at::Tensor& up_bias,
                        const at::Tensor& down, const at::Tensor& down_bias);

}  // namespace pom::ops
