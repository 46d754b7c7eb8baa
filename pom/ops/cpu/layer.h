// The whole layer on the CPU: tensors in, kernels run on torch's own threads, tensors out.
#pragma once

#include <functional>
#include <utility>

#include "pom/ops/problem.h"

namespace pom::ops::cpu {

// What the backward pass needs again. The projections are opaque: tile by tile, [feature][token].
struct Saved {
  at::Tensor ho, se;  // shaped (…, n, kD) and (…, m, kD), dtype of the tokens
  at::Tensor H;       // (segments, kD); empty under small causal blocks
};

// Blocks below this many tokens are walked token by token, larger ones keep one H each.
constexpr std::int64_t kScanBelow = 32;
bool covers(const Problem& problem);  // a fused kernel exists

// Rows of Saved::H, from shapes alone (ints or symbolic ints): one per segment. Of packed sequences only an
// upper bound on the number of blocks is known.
template <class Int>
Int saved_rows(const Int& sequences, const Int& keys_each, const Int& keys_total, std::int64_t block,
               bool packed) {
  if (block == 0) return sequences;
  if (block < kScanBelow) return Int(0);
  return packed ? keys_total / block + sequences : sequences * ((keys_each + (block - 1)) / block);
}

std::int64_t saved_rows(const Problem& problem);

// What comes between sums over tokens and what they are for, where other processes have tokens of the same
// sequences: of problems without a causal mask, (S, kD) of the S sequences here -> (S, kD). In the forward
// pass the sums become H; in the backward pass the sums of dL/dH become dL/d(sum).
using BetweenSums = std::function<at::Tensor(const at::Tensor& sums)>;

at::Tensor layer_forward(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                         const LayerWeights& weights, Saved* saved, const BetweenSums* between = nullptr);

struct Gradients {
  at::Tensor xq, xc;
  LayerWeights weights;
};
Gradients layer_backward(const Problem& problem, const at::Tensor& dout, const at::Tensor& xq,
                         const at::Tensor& xc, const LayerWeights& weights, const Saved& saved, bool need_x,
                         bool need_w, const BetweenSums* between = nullptr);

at::Tensor layer_summary(const Problem& problem, const at::Tensor& xc, const LayerWeights& weights);
at::Tensor layer_select(const Problem& problem, const at::Tensor& xq, const at::Tensor& H,
                        const LayerWeights& weights);
std::pair<at::Tensor, at::Tensor> layer_scan(const Problem& problem, const at::Tensor& x,
                                             const LayerWeights& weights, const at::Tensor& sum,
                                             const at::Tensor& count);

at::Tensor mix_forward(const Problem& problem, const at::Tensor& ho, const at::Tensor& se);
std::pair<at::Tensor, at::Tensor> mix_backward(const Problem& problem, const at::Tensor& dout,
                                               const at::Tensor& ho, const at::Tensor& se);

}  // namespace pom::ops::cpu
