// The dense products on torch's threads.
#pragma once

#include "pom/ops/block/inference.h"
#include "pom/ops/cpu/dense.h"
#include "pom/ops/cpu/layer.h"

namespace pom::ops::cpu {

// args' rows, modulation and choices are set; this adds the matrices and runs. `second` may have no weight.
void run_dense(DenseArgs args, const Dense& first, const Dense& second);

Rows stream_rows(const at::Tensor& x);  // (B, N, d) or (R, d), the last dimension contiguous
PerSequence per_sequence(const at::Tensor& values);

// x += gate * mixer_layer(modulated norm of x); with `seen`, of the means that it makes of the sums.
void mixer_stream(at::Tensor& x, const Modulation& modulation, const LayerWeights& weights,
                  std::int64_t order, const at::Tensor& gate, const BetweenSums& seen = {});
// x += gate * mixer_select(modulated norm of x, H)
void selection_stream(at::Tensor& x, const Modulation& modulation, const at::Tensor& H,
                      const LayerWeights& weights, const at::Tensor& gate);

}  // namespace pom::ops::cpu
