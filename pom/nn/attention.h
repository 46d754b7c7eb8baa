// Multi-head self-attention: the baseline that the mixer is compared with, under the usual names.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace pom::nn {

class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(std::int64_t dim, std::int64_t heads);

  at::Tensor forward(const at::Tensor& x);  // (B, N, d) -> (B, N, d)

  torch::nn::Linear qkv{nullptr}, proj{nullptr};  // d -> 3 x heads x d/heads; d -> d

 private:
  std::int64_t heads_;
};
TORCH_MODULE(Attention);

// The attention itself on a projection (B, N, 3d) laid out as (3, heads, d / heads) -> (B, N, d).
at::Tensor attend(const at::Tensor& qkv, std::int64_t heads);

}  // namespace pom::nn
