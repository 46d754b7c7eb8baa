// The operator in plain ATen: the oracle of tests, the baseline of benchmarks, the path of second derivatives
// and of what no kernel covers. Runs on any device, differentiable to any order. Causal masks cost O(n),
// never O(n^2).
#pragma once

#include "pom/ops/mixer.h"

namespace pom::ops::composed {

at::Tensor powers(const at::Tensor& ho, std::int64_t order);
at::Tensor polynomial_mixer(const at::Tensor& ho, const at::Tensor& se, std::int64_t order, const Mask& mask,
                            const Packing& packing);
at::Tensor mixer_layer(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& weights,
                       std::int64_t order, const Mask& mask, const Packing& packing);
at::Tensor mixer_summary(const at::Tensor& xc, const LayerWeights& weights, std::int64_t order,
                         const at::Tensor& keys);
at::Tensor mixer_select(const at::Tensor& xq, const at::Tensor& H, const LayerWeights& weights);
std::pair<at::Tensor, at::Tensor> mixer_scan(const at::Tensor& x, const LayerWeights& weights,
                                             std::int64_t order, const at::Tensor& sum,
                                             const at::Tensor& count);

}  // namespace pom::ops::composed
