#include "pom/nn/polymorpher.h"

#include <torch/nn/modules/activation.h>

#include "pom/base/error.h"

namespace pom::nn {

PolymorpherImpl::PolymorpherImpl(const PolymorpherOptions& o) {
  check(o.ffw_expand >= 1, "Polymorpher: ffw_expand: expected at least 1, got ", o.ffw_expand);
  pom = register_module("pom", PoM(o.dim, o.order, o.order_expand, o.bias));
  norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.dim})));
  norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.dim})));
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(o.bias));
  };
  ffw = register_module("ffw", torch::nn::Sequential(linear(o.dim, o.ffw_expand * o.dim), torch::nn::GELU(),
                                                     linear(o.ffw_expand * o.dim, o.dim)));
}

at::Tensor PolymorpherImpl::forward(const at::Tensor& x, const ops::Mask& mask, const ops::Packing& packing) {
  const at::Tensor mixed = x + pom->forward(norm1->forward(x), {}, mask, packing);  // (B, N, d)
  return mixed + ffw->forward(norm2->forward(mixed));
}

at::Tensor PolymorpherImpl::forward(const at::Tensor& x, const ops::Mask& mask,
                                    const ops::SplitTokens& split) {
  const at::Tensor mixed = x + pom->forward(norm1->forward(x), {}, mask, split);
  return mixed + ffw->forward(norm2->forward(mixed));
}

at::Tensor PolymorpherImpl::step(const at::Tensor& x, ops::MixerState& state) {
  const at::Tensor mixed = x + pom->step(norm1->forward(x), state);
  return mixed + ffw->forward(norm2->forward(mixed));
}

at::Tensor PolymorpherImpl::step_causal(const at::Tensor& x, ops::MixerState& state) {
  const at::Tensor mixed = x + pom->step_causal(norm1->forward(x), state);
  return mixed + ffw->forward(norm2->forward(mixed));
}

}  // namespace pom::nn
