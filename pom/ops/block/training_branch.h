// The branches of a training block, from the stream to what is to be added to it: a sum that waits for the
// next norm is taken with it in one pass. On CUDA a branch is one function of autograd, which keeps little
// and gives the gradients of fp32 weights in fp32. B pictures, N tokens, d width, k order, D features of a
// degree.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

#include "pom/ops/block/inference.h"
#include "pom/ops/mixer.h"

namespace pom::ops {

// A stream, and what is still to be added to it: x + (y + bias) (base + gate). Without y it is x alone.
struct ResidualStream {
  at::Tensor x = {};                        // (B, N, d)
  at::Tensor y = {}, bias = {}, gate = {};  // (B, N, d), (d), (B, d); no bias: y has it already
  double base = 0;
};

at::Tensor taken(const ResidualStream& stream);  // the sum
// The sum, and its modulated norm: layer_norm(.) (1 + scale) + shift.
std::pair<at::Tensor, at::Tensor> normed(const ResidualStream& stream, const Modulation& modulation);

// What the mixer of a branch reads: the stream's own tokens under a mask, or others with a mask of keys,
// (B, L, d) or P of them for as many equal parts of a sequence, (B * P, L, d), sequence by sequence.
struct MixerContext {
  at::Tensor tokens = {};
  Mask mask = {};
};

// The sum as x, and as y the branch of its modulated norm, still without a gate. Under autocast products are
// of the lower precision, whatever the dtypes of stream and weights; gradients have the dtypes of these.
ResidualStream mixer_branch(const ResidualStream& stream, const Modulation& modulation,
                            const LayerWeights& weights, std::int64_t order,
                            const MixerContext& context = {});
ResidualStream feed_forward_branch(const ResidualStream& stream, const Modulation& modulation,
                                   const at::Tensor& up, const at::Tensor& up_bias, const at::Tensor& down,
                                   const at::Tensor& down_bias);

}  // namespace pom::ops
