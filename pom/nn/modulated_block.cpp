#include "pom/nn/modulated_block.h"

#include <ATen/ops/layer_norm.h>
#include <torch/nn/modules/activation.h>

#include "pom/base/error.h"

namespace pom::nn {

torch::nn::Sequential silu_linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Sequential(torch::nn::SiLU(), torch::nn::Linear(in, out));
}

at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
  const at::Tensor normal = at::layer_norm(x, {x.size(-1)}, {}, {}, kNormEps);
  return normal * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1);
}

ModulatedBlockImpl::ModulatedBlockImpl(const BlockOptions& o) : gate_base_(o.attention ? 0.0 : 1.0) {
  check(o.ffw_expand >= 1, "ModulatedBlock: ffw_expand: expected at least 1, got ", o.ffw_expand);
  if (o.attention)
    attn = register_module("attn", Attention(o.dim, o.heads));
  else
    pom = register_module("pom", PoM(o.dim, o.order, o.order_expand));
  ffw = register_module(
      "ffw", torch::nn::Sequential(torch::nn::Linear(o.dim, o.ffw_expand * o.dim), torch::nn::GELU(),
                                   torch::nn::Linear(o.ffw_expand * o.dim, o.dim)));
  cond_mlp = register_module("cond_mlp", silu_linear(o.dim, 4 * o.dim));
  gate_mlp = register_module("gate_mlp", silu_linear(o.dim, 2 * o.dim));
}

at::Tensor ModulatedBlockImpl::forward(const at::Tensor& x, const at::Tensor& c) {
  const std::vector<at::Tensor> m = cond_mlp->forward(c).chunk(4, -1);  // scale, shift; scale, shift: (B, d)
  const std::vector<at::Tensor> g =
      (gate_base_ + gate_mlp->forward(c)).unsqueeze(1).chunk(2, -1);  // (B, 1, d)
  const at::Tensor normal = modulated_norm(x, m[0], m[1]);
  const at::Tensor mixed = x + (attn ? attn->forward(normal) : pom->forward(normal)) * g[0];
  return mixed + ffw->forward(modulated_norm(mixed, m[2], m[3])) * g[1];
}

}  // namespace pom::nn
