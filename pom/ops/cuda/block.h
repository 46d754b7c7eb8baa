// Private to the room: what CUDA does for the parts of blocks (pom/ops/block). Arguments are checked before;
// a result that may be missing is, where no kernel is for a shape, a dtype or a GPU, and the caller composes.
// In a build without kernels (no_cuda.cpp) that is always so.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/ops/block/block_stack.h"
#include "pom/ops/block/conditions.h"
#include "pom/ops/block/stack_step.h"
#include "pom/ops/block/training_backend.h"
#include "pom/ops/block/training_branch.h"
#include "pom/ops/cuda/device.h"

namespace pom::ops::cuda {

// block_stack.h and stack_step.h, as one kernel.
std::unique_ptr<BlockStack> block_stack(const at::Tensor& x, std::span<const StackedBlock> blocks,
                                        std::int64_t order, bool fp8);
bool stack_step(at::Tensor& x, std::span<const SteppedBlock> blocks, const at::Tensor& modulation,
                at::Tensor& sums, at::Tensor& count, std::int64_t order, double eps);

}  // namespace pom::ops::cuda

namespace pom::ops::detail {

// training.h; only where there are kernels. Sums over tokens in a fixed order: equal bits from run to run.
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
std::optional<ResidualStream> mixer_branch_cuda(const ResidualStream& stream, const Modulation& modulation,
                                                const LayerWeights& weights, std::int64_t order,
                                                const MixerContext& context);
std::optional<ResidualStream> feed_forward_branch_cuda(const ResidualStream& stream,
                                                       const Modulation& modulation, const at::Tensor& up,
                                                       const at::Tensor& up_bias, const at::Tensor& down,
                                                       const at::Tensor& down_bias);
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

}  // namespace pom::ops::detail
