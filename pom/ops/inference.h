// Halves of a network's blocks for sampling: no gradients, in place on the residual stream, each a single
// pass over tiles of tokens on the CPU; composed of ATen operations elsewhere. Row by row the results do not
// depend on the batch or on the number of threads, bit for bit; of a mixer of an order above kMaxFusedOrder,
// which is composed on the CPU too, not on the batch.
//
// x is the stream (B, N, d) in fp32 (fp64 for fp64 weights), contiguous; weights may be fp32, bf16, fp16,
// fp64. Scales, shifts and gates are (B, d) in the stream's dtype, rows that may lie apart.
#pragma once

#include "pom/ops/mixer.h"

namespace pom::ops {

struct Modulation {
  at::Tensor scale, shift;
  double eps = 1e-6;
};

struct Dense {
  at::Tensor weight, bias;  // (out, in), (out) or undefined
};

// x += gate * mixer_layer(m), m = layer_norm(x) * (1 + scale) + shift
void mixer_half(at::Tensor& x, const Modulation& modulation, const LayerWeights& weights, std::int64_t order,
                const at::Tensor& gate);

// x += gate * (gelu(m W_up + b_up) W_down + b_down)
void feed_forward_half(at::Tensor& x, const Modulation& modulation, const Dense& up, const Dense& down,
                       const at::Tensor& gate);

// y = m W + b into y (B, N, out), which is in the stream's dtype or in that of the weights.
void modulated_linear(const at::Tensor& x, const Modulation& modulation, const Dense& dense, at::Tensor& y);

// x += gate * (y W + b), y (B, N, in) in the stream's dtype.
void linear_half(at::Tensor& x, const at::Tensor& y, const Dense& dense, const at::Tensor& gate);

// Rows (R, in) -> out (R, out), all in the stream's dtype: x W + b, silu(x) W + b, and
// silu(x W1 + b1) W2 + b2.
void linear_rows(const at::Tensor& x, const Dense& dense, at::Tensor& out);
void silu_linear_rows(const at::Tensor& x, const Dense& dense, at::Tensor& out);
void silu_mlp_rows(const at::Tensor& x, const Dense& up, const Dense& down, at::Tensor& out);

}  // namespace pom::ops
