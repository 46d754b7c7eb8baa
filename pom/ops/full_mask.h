// The layer under a full mask (B x m x n), for inference: a matrix product with the mask, taken in tiles of
// queries and context tokens so that memory stays bounded however long the sequences.
#pragma once

#include "pom/ops/mixer.h"

namespace pom::ops {

// `visible` (B, m, n), 1 where a query sees a token.
at::Tensor full_mask_layer(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& weights,
                           std::int64_t order, const at::Tensor& visible);

}  // namespace pom::ops
