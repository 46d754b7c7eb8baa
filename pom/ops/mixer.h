// The Polynomial Mixer. Shapes: B sequences, m queries, n context tokens, d width, k order, kD = k * e * d
// features.
//
//   p_1 = gelu(ho_1), p_i = p_{i-1} * gelu(ho_i)   over the k chunks of a context token's projection
//   H   = mean over the visible context tokens of [p_1 .. p_k]
//   out = sigmoid(se) * H                          for each query
//
// polynomial_mixer takes the two projections; mixer_layer is the whole layer with its three matrices. Both
// have gradients of first order by hand-written kernels, of second order and in forward mode by the composed
// operations.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "pom/ops/mask.h"

namespace pom::ops {

// ho (B, n, kD), se (B, m, kD) -> (B, m, kD); packed: (total, kD).
at::Tensor polynomial_mixer(const at::Tensor& ho, const at::Tensor& se, std::int64_t order,
                            const Mask& mask = {}, const Packing& packing = {});

struct LayerWeights {
  at::Tensor ho_weight, ho_bias;  // (kD, d), (kD); biases may be undefined
  at::Tensor se_weight, se_bias;  // (kD, d), (kD)
  at::Tensor ag_weight, ag_bias;  // (d, kD), (d)
};

// xq (B, m, d), xc (B, n, d) -> (B, m, d); packed: (total, d). Self-mixing: pass the same tensor twice.
at::Tensor mixer_layer(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& weights,
                       std::int64_t order, const Mask& mask = {}, const Packing& packing = {});

// The two halves of mixer_layer for those who keep H themselves: the sum over tokens, and the queries against
// H. The sum and H are (B, kD), fp32 (fp64 for fp64 tokens). `keys` (B, n) may be undefined.
at::Tensor mixer_summary(const at::Tensor& xc, const LayerWeights& weights, std::int64_t order,
                         const at::Tensor& keys = {});
at::Tensor mixer_select(const at::Tensor& xq, const at::Tensor& H, const LayerWeights& weights);

// A causal layer that goes on from a running sum (B, kD) over count (B, int64) tokens; gives the new sum as
// well.
std::pair<at::Tensor, at::Tensor> mixer_scan(const at::Tensor& x, const LayerWeights& weights,
                                             std::int64_t order, const at::Tensor& sum,
                                             const at::Tensor& count);

// Degrees above this have no fused kernel and take the composed path.
constexpr std::int64_t kMaxFusedOrder = 16;

// Which implementation runs. `automatic` is fused wherever a fused kernel exists; `fused` is an error
// elsewhere; `composed` is plain ATen, the oracle and the last resort. Per thread; threads begin with what
// POM_PATH in the environment says.
enum class Path { automatic = 0, fused = 1, composed = 2 };
Path path();
Path set_path(Path path);  // returns the one before

class PathGuard {
 public:
  explicit PathGuard(Path path) : before_(set_path(path)) {}
  ~PathGuard() { set_path(before_); }
  PathGuard(const PathGuard&) = delete;
  PathGuard& operator=(const PathGuard&) = delete;

 private:
  Path before_;
};

}  // namespace pom::ops
