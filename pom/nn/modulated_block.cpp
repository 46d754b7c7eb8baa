#include "pom/nn/modulated_block.h"

#include <ATen/ops/silu.h>
#include <torch/nn/modules/activation.h>

#include "pom/base/error.h"
#include "pom/ops/training.h"

namespace pom::nn {
namespace {

torch::nn::LinearImpl& linear_of(torch::nn::Sequential& silu_linear) {
  return silu_linear->at<torch::nn::LinearImpl>(1);
}

}  // namespace

torch::nn::Sequential silu_linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Sequential(torch::nn::SiLU(), torch::nn::Linear(in, out));
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
  const at::Tensor s = at::silu(c);  // once for both, so that c gets one gradient from each block
  const std::vector<at::Tensor> m =
      linear_of(cond_mlp).forward(s).chunk(4, -1);  // scale, shift; scale, shift
  const std::vector<at::Tensor> g = linear_of(gate_mlp).forward(s).chunk(2, -1);  // (B, d)
  const at::Tensor normal = ops::modulated_norm(x, m[0], m[1], kNormEps);
  const at::Tensor mixed = attn ? attn->forward(normal) : pom->forward(normal);
  const auto [stream, again] = ops::gated_add_norm(x, mixed, g[0], gate_base_, m[2], m[3], kNormEps);
  return ops::gated_add(stream, feed_forward(again), g[1], gate_base_);
}

at::Tensor ModulatedBlockImpl::feed_forward(const at::Tensor& x) {
  const auto &up = ffw->at<torch::nn::LinearImpl>(0), &down = ffw->at<torch::nn::LinearImpl>(2);
  return ops::feed_forward(x, up.weight, up.bias, down.weight, down.bias);
}

}  // namespace pom::nn
