// The operator on CUDA, with gradients: products and the kernels between them. Without a mask, with one of
// keys, or with blocks (of a window or all) that the tokens fill; the rest is composed.
#pragma once

#include <tuple>

#include "pom/ops/problem.h"

namespace pom::ops::cuda {

// Blocks are worth sequences of their own where there are many tokens in each and not too many of them.
inline bool covers_blocks(const Mask& mask, const at::Tensor& x) {
  constexpr std::int64_t least = 32, most = 512;
  if (x.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || x.dim() != 3 || mask.block < least)
    return false;
  const std::int64_t n = x.size(1);
  return n > 0 && n % mask.block == 0 && n / mask.block <= most;
}

// x: the queries, (B, m, any).
inline bool covers(const Mask& mask, const Packing& packing, std::int64_t order, const at::Tensor& x) {
#ifdef POM_WITH_CUDA
  if (packing.packed() || order > kMaxFusedOrder || x.scalar_type() == at::kDouble) return false;
  return mask.is_none() || (mask.is_keys() && mask.block == 0) ||
         (!mask.visible.defined() && covers_blocks(mask, x));
#else
  return false;
#endif
}

// What the backward pass needs again.
struct Saved {
  at::Tensor ho, se;  // (B, n, kD), (B, m, kD), dtype of the tokens
  at::Tensor H;       // (B, kD), fp32; with blocks one after another, (B blocks, kD)
};
struct Gradients {
  at::Tensor xq, xc;  // undefined where not needed
  LayerWeights weights;
};

at::Tensor mix_forward(const Problem& problem, const at::Tensor& ho, const at::Tensor& se);
std::tuple<at::Tensor, at::Tensor> mix_backward(const Problem& problem, const at::Tensor& dout,
                                                const at::Tensor& ho, const at::Tensor& se);
at::Tensor layer_forward(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                         const LayerWeights& weights, Saved* saved);
Gradients layer_backward(const Problem& problem, const at::Tensor& dout, const at::Tensor& xq,
                         const at::Tensor& xc, const LayerWeights& weights, const Saved& saved, bool need_x,
                         bool need_w);

}  // namespace pom::ops::cuda
