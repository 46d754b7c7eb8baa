// The Polynomial Mixer as a module: three projections under the paper's names around ops::mixer_layer.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "pom/ops/mixer.h"
#include "pom/ops/split_tokens.h"
#include "pom/ops/state.h"

namespace pom::nn {

struct PoMOptions {
  std::int64_t dim = 0;           // d
  std::int64_t order = 2;         // k
  std::int64_t order_expand = 2;  // e; the projections have k * e * d features
  bool bias = true;
};

class PoMImpl : public torch::nn::Module {
 public:
  PoMImpl(std::int64_t dim, std::int64_t order, std::int64_t order_expand, bool bias = true)
      : PoMImpl(PoMOptions{dim, order, order_expand, bias}) {}
  explicit PoMImpl(const PoMOptions& options);

  // xq (B, m, d); context xc (B, n, d), xq itself when undefined -> (B, m, d).
  at::Tensor forward(const at::Tensor& xq, const at::Tensor& xc = {}, const ops::Mask& mask = {},
                     const ops::Packing& packing = {});
  // The same where the context's tokens are split over ranks (pom/ops/sequence.h).
  at::Tensor forward(const at::Tensor& xq, const at::Tensor& xc, const ops::Mask& mask,
                     const ops::SplitTokens& split);

  ops::MixerState start(std::int64_t batch, std::int64_t window = 0) const;
  at::Tensor step(const at::Tensor& x, ops::MixerState& state) const;
  at::Tensor step_causal(const at::Tensor& x, ops::MixerState& state) const;

  ops::LayerWeights weights() const;
  const PoMOptions& options() const { return options_; }

  torch::nn::Linear ho_proj{nullptr}, se_proj{nullptr}, ag_proj{nullptr};

 private:
  PoMOptions options_;
};
TORCH_MODULE(PoM);

}  // namespace pom::nn
