#include "pom/nn/pom.h"

#include "pom/base/error.h"
#include "pom/ops/sequence.h"

namespace pom::nn {
namespace {

PoMOptions checked(const PoMOptions& o) {
  check(o.dim >= 1, "PoM: dim: expected at least 1, got ", o.dim);
  check(o.order >= 1, "PoM: order: expected at least 1, got ", o.order);
  check(o.order_expand >= 1, "PoM: order_expand: expected at least 1, got ", o.order_expand);
  return o;
}

}  // namespace

PoMImpl::PoMImpl(const PoMOptions& options) : options_(checked(options)) {
  const std::int64_t features = options_.order * options_.order_expand * options_.dim;
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options_.bias));
  };
  ho_proj = register_module("ho_proj", linear(options_.dim, features));
  se_proj = register_module("se_proj", linear(options_.dim, features));
  ag_proj = register_module("ag_proj", linear(features, options_.dim));
}

ops::LayerWeights PoMImpl::weights() const {
  return {ho_proj->weight, ho_proj->bias, se_proj->weight, se_proj->bias, ag_proj->weight, ag_proj->bias};
}

at::Tensor PoMImpl::forward(const at::Tensor& xq, const at::Tensor& xc, const ops::Mask& mask,
                            const ops::Packing& packing) {
  ops::Packing both = packing;
  if (both.cu_q.defined() && !both.cu_k.defined() && !xc.defined()) both.cu_k = both.cu_q;
  return ops::mixer_layer(xq, xc.defined() ? xc : xq, weights(), options_.order, mask, both);
}

at::Tensor PoMImpl::forward(const at::Tensor& xq, const at::Tensor& xc, const ops::Mask& mask,
                            const ops::SplitTokens& split) {
  return ops::mixer_layer(xq, xc.defined() ? xc : xq, weights(), options_.order, mask, split);
}

ops::MixerState PoMImpl::start(std::int64_t batch, std::int64_t window) const {
  return ops::MixerState::start(batch, ho_proj->weight.size(0), ho_proj->weight, window);
}

at::Tensor PoMImpl::step(const at::Tensor& x, ops::MixerState& state) const {
  return ops::step(x, state, weights(), options_.order);
}

at::Tensor PoMImpl::step_causal(const at::Tensor& x, ops::MixerState& state) const {
  return ops::step_causal(x, state, weights(), options_.order);
}

}  // namespace pom::nn
