// The paper's Polymorpher: a residual block of mixing and feed-forward, each after a layer norm.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include "pom/nn/pom.h"

namespace pom::nn {

struct PolymorpherOptions {
  std::int64_t dim = 0;
  std::int64_t order = 2;
  std::int64_t order_expand = 2;
  std::int64_t ffw_expand = 4;  // the feed-forward has ffw_expand * dim hidden features
  bool bias = true;
};

class PolymorpherImpl : public torch::nn::Module {
 public:
  explicit PolymorpherImpl(const PolymorpherOptions& options);

  at::Tensor forward(const at::Tensor& x, const ops::Mask& mask = {}, const ops::Packing& packing = {});
  at::Tensor forward(const at::Tensor& x, const ops::Mask& mask, const ops::SplitTokens& split);
  at::Tensor step(const at::Tensor& x, ops::MixerState& state);  // one more block of the sequence
  // Tokens that each see themselves and what came before.
  at::Tensor step_causal(const at::Tensor& x, ops::MixerState& state);

  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  PoM pom{nullptr};
  torch::nn::Sequential ffw{nullptr};
};
TORCH_MODULE(Polymorpher);

}  // namespace pom::nn
