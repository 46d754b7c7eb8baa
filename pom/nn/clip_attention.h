// Attention over clips, the baseline of the mixer there: from text into video, and over the video under a
// temporal mask (block by block with what key_values.h keeps). B clips, N tokens, d width, L tokens of
// text.
#pragma once

#include <cstdint>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "pom/ops/mask.h"

namespace pom::nn {

class CrossAttentionImpl : public torch::nn::Module {
 public:
  CrossAttentionImpl(std::int64_t dim, std::int64_t heads);

  // x (B, N, d), context (B, L, d), keys (B, L) bool -> (B, N, d).
  at::Tensor forward(const at::Tensor& x, const at::Tensor& context, const at::Tensor& keys);

  torch::nn::Linear q{nullptr}, kv{nullptr}, proj{nullptr};  // d -> d; d -> 2 x heads x d/heads; d -> d

 private:
  std::int64_t heads_;
};
TORCH_MODULE(CrossAttention);

// Queries (B, m, d) over keys and values (B, n, d), laid out as (heads, d / heads). `visible` is undefined,
// or bool of a shape that broadcasts to (B, heads, m, n).
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t heads,
                  const at::Tensor& visible = {});

// A causal mask written out: (n, n) bool, row i what query i sees. Undefined for no mask.
at::Tensor materialised(const ops::Mask& mask, std::int64_t n, const at::Device& device);

}  // namespace pom::nn
