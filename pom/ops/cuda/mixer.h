// The operator on CUDA, with gradients: products and the kernels between them. Under every mask but full
// ones, and of packed sequences; fp64 and high orders are composed. In a build without kernels (no_cuda.cpp)
// nothing is covered.
#pragma once

#include <functional>
#include <tuple>

#include "pom/ops/problem.h"

namespace pom::ops::cuda {

// Whether the functions below take this. x: the queries, (B, m, any).
bool covers(const Mask& mask, const Packing& packing, std::int64_t order, const at::Tensor& x);
// Whether it is without a mask, with one of keys, or with blocks (of a window or all) that the tokens fill:
// there sums of whole sequences or blocks are all that queries need, and other ranks may add theirs.
bool covers_whole(const Mask& mask, std::int64_t order, const at::Tensor& x);

// What the backward pass needs again.
struct Saved {
  at::Tensor ho, se;  // (B, n, kD), (B, m, kD), dtype of the tokens
  at::Tensor H;  // (B, kD), fp32; with blocks one after another, (B blocks, kD); or masked_mixer.h's sums
};
struct Gradients {
  at::Tensor xq, xc;  // undefined where not needed
  LayerWeights weights;
};

at::Tensor mix_forward(const Problem& problem, const at::Tensor& ho, const at::Tensor& se);
std::tuple<at::Tensor, at::Tensor> mix_backward(const Problem& problem, const at::Tensor& dout,
                                                const at::Tensor& ho, const at::Tensor& se);
// Weights in other forms, where the caller has them; else they are made where a kernel wants them.
struct LayerCopies {
  at::Tensor ho_context;     // rows in the context's order
  at::Tensor ag_transposed;  // (kD, d)
};
// Where other ranks have tokens of the same sequences: from the means over the tokens here, of each sequence
// or block, (S, kD) in fp32, to those over what its queries see, H; in the backward pass from the gradients
// of H to those of the means.
using BetweenMeans = std::function<at::Tensor(const at::Tensor&)>;
// sigmoid(se) H, (B, m, kD): the layer up to its last product. Without the weights of that.
at::Tensor layer_gated(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                       const LayerWeights& weights, Saved* saved, const BetweenMeans* between = nullptr,
                       const LayerCopies& copies = {});
at::Tensor layer_forward(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                         const LayerWeights& weights, Saved* saved, const BetweenMeans* between = nullptr,
                         const LayerCopies& copies = {});
Gradients layer_backward(const Problem& problem, const at::Tensor& dout, const at::Tensor& xq,
                         const at::Tensor& xc, const LayerWeights& weights, const Saved& saved, bool need_x,
                         bool need_w, const BetweenMeans* between = nullptr);

// The layer's backward pass up to its two projections, from which all gradients are products.
struct ProjectionGradients {
  at::Tensor dho, dse;            // (rows of the context or the queries, kD)
  at::Tensor dho_sums, dse_sums;  // (any, kD), fp32: the gradient of a bias is the sum over these
  at::Tensor gated;               // (rows of the queries, kD), the input of the last product
};
// `for_weights`: with what only the gradients of weights need.
ProjectionGradients projection_gradients(const Problem& problem, const at::Tensor& dout,
                                         const at::Tensor& ag_weight, const Saved& saved, bool for_weights,
                                         const BetweenMeans* between = nullptr,
                                         const LayerCopies& copies = {});

}  // namespace pom::ops::cuda
