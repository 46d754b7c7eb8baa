// One token of each sequence through a whole stack of causal blocks, each of which goes on from the sum of
// the tokens before. On a GPU of compute capability 9.0, with weights in bf16 or fp16, up to 8 sequences and
// the sizes that pom/kernels/sm90/decode/stack_step.h has, it is one kernel, bound by reading the weights
// once; else block by block. B sequences, L blocks, d width, kD features.
#pragma once

#include <span>

#include "pom/ops/block/inference.h"

namespace pom::ops {

// y = layer_norm(x) (1 + scale) + shift;  x += gate * mixer(y), causal
// y = layer_norm(x) (1 + scale) + shift;  x += gate * (gelu(y W_up + b_up) W_down + b_down)
struct SteppedBlock {
  LayerWeights mixer;  // biases are fp32 (fp64 beside weights in fp64), or undefined
  Dense up, down;
};

// All in place: x (B, d), the residual stream; sums (L, B, kD); count (B), int64, tokens before this one. The
// modulation (L, B, 6 d) has scale, shift and gate of the mixer, then of the feed-forward. All but count are
// fp32 (fp64 beside weights in fp64) and contiguous. No gradients. Says whether it was one kernel.
bool stack_step(at::Tensor& x, std::span<const SteppedBlock> blocks, const at::Tensor& modulation,
                at::Tensor& sums, at::Tensor& count, std::int64_t order, double eps = 1e-6);

}  // namespace pom::ops
