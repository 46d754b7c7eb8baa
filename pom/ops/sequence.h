// The layer where the tokens of each sequence are split over the ranks of a group: a rank has the same
// stretch of every sequence of the batch, and a layer exchanges sums of kD numbers for each, forward and
// backward, however long the sequences are.
//
// Gradients of tokens are complete. Those of weights are the share of this rank's tokens: the sum over the
// group is the gradient. All ranks of the group call it alike, in both passes.
#pragma once

#include "pom/ops/mixer.h"
#include "pom/ops/split_tokens.h"

namespace pom::ops {

// xq (B, m, d) and xc (B, n, d) are this rank's queries and context tokens; `split` says how the context is
// dealt out. Masks: none, keys (B, n) of this rank's tokens, and the causal ones, whose queries are the
// context's tokens and whose blocks count from the first token of the sequence, wherever ranks have their
// borders. A context that all ranks have whole needs no split: that is the plain layer.
at::Tensor mixer_layer(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& weights,
                       std::int64_t order, const Mask& mask, const SplitTokens& split);

}  // namespace pom::ops
