// Attention over clips, the baseline of the mixer there: from text into video, over the video under a
// temporal mask, and block by block with a cache of keys and values. B clips, N tokens, d width, L tokens of
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

// Keys and values of the blocks so far, or of the last `window` of them. Room grows by doubling, so that a
// block costs its own copy.
class KeyValueCache {
 public:
  explicit KeyValueCache(std::int64_t window = 0) : window_(window) {}

  void append(const at::Tensor& k, const at::Tensor& v);  // one more block: (B, K, d) each
  at::Tensor keys() const { return keys_.slice(1, begin_, end_); }
  at::Tensor values() const { return values_.slice(1, begin_, end_); }
  std::int64_t tokens() const { return end_ - begin_; }
  KeyValueCache clone() const;

 private:
  void make_room(const at::Tensor& like);

  std::int64_t window_ = 0, begin_ = 0, end_ = 0;
  at::Tensor keys_, values_;  // (B, room, d)
};

}  // namespace pom::nn
