// Private to the room: what a device does for training.h; of CUDA, pom/ops/cuda/block.h has it. Sizes, dtypes
// and devices are checked before; tensors are contiguous. x, y, dout, out: fp32 or bf16 (fp64 on the CPU; on
// CUDA a branch fp16 too), each of its own dtype; scale, shift, gate (B, d) and what is saved or summed over
// tokens: fp32 (fp64 where x is).
#pragma once

#include <ATen/core/Tensor.h>

namespace pom::ops::detail {

struct NormForward {
  at::Tensor out;         // (B, N, d) of `out_dtype`
  at::Tensor mean, rstd;  // (B, N)
};
struct NormBackward {
  at::Tensor dx;              // (B, N, d), of x's dtype
  at::Tensor dscale, dshift;  // (B, d)
};
struct GateBackward {
  at::Tensor dy;     // (B, N, d), of y's dtype
  at::Tensor dgate;  // (B, d)
};

// The two together: sum = x + y * (base + gate), out its modulated norm. `dsum` may be undefined.
struct GatedNormForward {
  at::Tensor sum, out;    // (B, N, d), of x's dtype and of y's
  at::Tensor mean, rstd;  // (B, N)
};
struct GatedNormBackward {
  at::Tensor dx, dy;                 // (B, N, d)
  at::Tensor dgate, dscale, dshift;  // (B, d)
};

NormForward modulated_norm_forward_cpu(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                       double eps, at::ScalarType out_dtype);
NormBackward modulated_norm_backward_cpu(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& scale,
                                         const at::Tensor& mean, const at::Tensor& rstd);
at::Tensor gated_add_forward_cpu(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                 double base);
GateBackward gated_add_backward_cpu(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& gate,
                                    double base);
GatedNormForward gated_add_norm_forward_cpu(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                            double base, const at::Tensor& scale, const at::Tensor& shift,
                                            double eps);
GatedNormBackward gated_add_norm_backward_cpu(const at::Tensor& dsum, const at::Tensor& dout,
                                              const at::Tensor& sum, const at::Tensor& y,
                                              const at::Tensor& gate, double base, const at::Tensor& scale,
                                              const at::Tensor& mean, const at::Tensor& rstd);

// gelu(x W_up + b_up) W_down + b_down; x, weights and biases of one dtype, contiguous.
struct FeedForwardWeights {
  at::Tensor up, up_bias, down, down_bias;  // (hidden, in), (hidden), (out, hidden), (out)
};
struct FeedForward {
  at::Tensor out;
  at::Tensor before;  // the activation's input, in the device's own order; undefined where not asked for
};
struct FeedForwardBackward {
  at::Tensor dx, up, up_bias, down, down_bias;
};
FeedForward feed_forward_cpu(const at::Tensor& x, const FeedForwardWeights& weights, bool save);
FeedForwardBackward feed_forward_backward_cpu(const at::Tensor& dout, const at::Tensor& x,
                                              const FeedForwardWeights& weights, const at::Tensor& before,
                                              bool need_x);

}  // namespace pom::ops::detail
