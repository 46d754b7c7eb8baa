#include "pom/nn/modulated_block.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <torch/nn/modules/activation.h>

#include "pom/base/error.h"

namespace pom::nn {
torch::nn::LinearImpl& linear_of(torch::nn::Sequential& silu_linear) {
  return silu_linear->at<torch::nn::LinearImpl>(1);
}

ops::ConditionMatrix condition_matrix(torch::nn::Sequential& silu_linear, std::int64_t parts) {
  const auto& linear = linear_of(silu_linear);
  return {linear.weight, linear.bias, parts};
}

at::Tensor in_eights(const at::Tensor& rows) {
  const std::int64_t rest = rows.size(0) % 8;
  return rows.is_cuda() && rest != 0 ? at::constant_pad_nd(rows, {0, 0, 0, 8 - rest}) : rows;
}

torch::nn::Sequential silu_linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Sequential(torch::nn::SiLU(), torch::nn::Linear(in, out));
}

ModulatedBlockImpl::ModulatedBlockImpl(const BlockOptions& o)
    : gelu_(o.gelu), gate_base_(o.attention ? 0.0 : 1.0) {
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

at::Tensor ModulatedBlockImpl::forward(const at::Tensor& x, const at::Tensor& c,
                                       const ops::SplitTokens& split) {
  return ops::taken(forward(ops::ResidualStream{.x = x}, c, split));
}

ops::ResidualStream ModulatedBlockImpl::forward(const ops::ResidualStream& before, const at::Tensor& c,
                                                const ops::SplitTokens& split) {
  const at::Tensor s = at::silu(c);  // once for both, so that c gets one gradient from each block
  const std::vector<at::Tensor> m =
      ops::conditions(s, {condition_matrix(cond_mlp, 4), condition_matrix(gate_mlp, 2)}, before.x);
  ops::ResidualStream stream = mixed(before, {m[0], m[1], kNormEps}, split);
  stream.gate = m[4], stream.base = gate_base_;
  stream = fed_forward(stream, {m[2], m[3], kNormEps});
  stream.gate = m[5], stream.base = gate_base_;
  return stream;
}

ops::ResidualStream ModulatedBlockImpl::mixed(const ops::ResidualStream& stream, const ops::Modulation& m,
                                              const ops::SplitTokens& split) {
  if (split.split()) {
    check(static_cast<bool>(pom),
          "ModulatedBlock: split: expected the mixer over split tokens, got attention");
    const auto [sum, normal] = ops::normed(stream, m);
    return {.x = sum, .y = pom->forward(normal, {}, {}, split)};
  }
  if (pom) return ops::mixer_branch(stream, m, pom->weights(), pom->options().order);
  const auto [sum, normal] = ops::normed(stream, m);
  return {.x = sum, .y = attn->forward(normal)};
}

ops::ResidualStream ModulatedBlockImpl::fed_forward(const ops::ResidualStream& stream,
                                                    const ops::Modulation& m) {
  const auto &up = ffw->at<torch::nn::LinearImpl>(0), &down = ffw->at<torch::nn::LinearImpl>(2);
  if (gelu_ == ops::Gelu::erf)
    return ops::feed_forward_branch(stream, m, up.weight, up.bias, down.weight, down.bias);
  const auto [sum, normal] = ops::normed(stream, m);
  const at::Tensor hidden = at::gelu(at::linear(normal, up.weight, up.bias), "tanh");
  return {.x = sum, .y = at::linear(hidden, down.weight, down.bias)};
}

}  // namespace pom::nn
