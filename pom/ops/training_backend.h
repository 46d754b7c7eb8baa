// Private to the room: what a device does for training.h. Sizes, dtypes and devices are checked before;
// tensors are contiguous. x, y, dout, out: fp32 or bf16 (fp64 on the CPU; on CUDA a branch fp16 too), each of
// its own dtype; scale, shift, gate (B, d) and what is saved or summed over tokens: fp32 (fp64 where x is).
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "pom/ops/conditions.h"
#include "pom/ops/training_branch.h"

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

#ifdef POM_WITH_CUDA  // sums over tokens in a fixed order: equal bits from run to run
NormForward modulated_norm_forward_cuda(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                        double eps, at::ScalarType out_dtype);
NormBackward modulated_norm_backward_cuda(const at::Tensor& dout, const at::Tensor& x,
                                          const at::Tensor& scale, const at::Tensor& mean,
                                          const at::Tensor& rstd);
at::Tensor gated_add_forward_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                  double base);
GateBackward gated_add_backward_cuda(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& gate,
                                     double base);
// bias (d), fp32, may be undefined: sum = x + (y + bias) (base + gate).
GatedNormForward gated_add_norm_forward_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                             double base, const at::Tensor& scale, const at::Tensor& shift,
                                             double eps, const at::Tensor& bias = {});
GatedNormBackward gated_add_norm_backward_cuda(const at::Tensor& dsum, const at::Tensor& dout,
                                               const at::Tensor& sum, const at::Tensor& y,
                                               const at::Tensor& gate, double base, const at::Tensor& scale,
                                               const at::Tensor& mean, const at::Tensor& rstd);
// The same with the forward's `out` once more, and the gradient of the bias where there is one.
struct GatedNormAgain : GatedNormBackward {
  at::Tensor again, dbias;  // (B, N, d), (d)
};
GatedNormAgain gated_add_norm_again_cuda(const at::Tensor& dsum, const at::Tensor& dout,
                                         const at::Tensor& sum, const at::Tensor& y, const at::Tensor& gate,
                                         double base, const at::Tensor& scale, const at::Tensor& shift,
                                         const at::Tensor& mean, const at::Tensor& rstd,
                                         const at::Tensor& bias);
// The branches of training_branch.h, where gradients are wanted and there are products of these sizes.
std::optional<Stream> mixer_branch_cuda(const Stream& stream, const Modulation& modulation,
                                        const LayerWeights& weights, std::int64_t order);
std::optional<Stream> feed_forward_branch_cuda(const Stream& stream, const Modulation& modulation,
                                               const at::Tensor& up, const at::Tensor& up_bias,
                                               const at::Tensor& down, const at::Tensor& down_bias);
// conditions.h, where gradients of fp32 weights are wanted for a batch of a few.
std::optional<std::vector<at::Tensor>> conditions_cuda(const at::Tensor& s,
                                                       const std::vector<ConditionMatrix>& matrices,
                                                       const at::Tensor& stream);
// In bf16 and fp16, where there is a product for x and the weight `up`.
bool has_feed_forward_cuda(const at::Tensor& x, const at::Tensor& up);
FeedForward feed_forward_cuda(const at::Tensor& x, const FeedForwardWeights& weights, bool save);
FeedForwardBackward feed_forward_backward_cuda(const at::Tensor& dout, const at::Tensor& x,
                                               const FeedForwardWeights& weights, const at::Tensor& before,
                                               bool need_x);
#endif

}  // namespace pom::ops::detail
