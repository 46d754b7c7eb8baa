#include "pom/nn/clip_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "pom/base/error.h"
#include "pom/ops/block/lowered_linear.h"

namespace pom::nn {

CrossAttentionImpl::CrossAttentionImpl(std::int64_t dim, std::int64_t heads) : heads_(heads) {
  check(dim >= 1, "CrossAttention: dim: expected at least 1, got ", dim);
  check(heads >= 1 && dim % heads == 0, "CrossAttention: heads: expected a divisor of dim = ", dim, ", got ",
        heads);
  q = register_module("q", torch::nn::Linear(dim, dim));
  kv = register_module("kv", torch::nn::Linear(dim, 2 * dim));
  proj = register_module("proj", torch::nn::Linear(dim, dim));
}

at::Tensor CrossAttentionImpl::forward(const at::Tensor& x, const at::Tensor& context,
                                       const at::Tensor& keys) {
  const std::vector<at::Tensor> both = ops::lowered_linear(context, kv->weight, kv->bias).chunk(2, -1);
  const at::Tensor visible = keys.defined() ? keys.unsqueeze(1).unsqueeze(1) : keys;  // (B, 1, 1, L)
  const at::Tensor queries = ops::lowered_linear(x, q->weight, q->bias);
  return ops::lowered_linear(attend(queries, both[0], both[1], heads_, visible), proj->weight, proj->bias);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t heads,
                  const at::Tensor& visible) {
  const auto in_heads = [&](const at::Tensor& x) { return x.unflatten(-1, {heads, -1}).transpose(1, 2); };
  const std::optional<at::Tensor> mask = visible.defined() ? std::optional(visible) : std::nullopt;
  return at::scaled_dot_product_attention(in_heads(q), in_heads(k), in_heads(v), mask)
      .transpose(1, 2)
      .flatten(2);
}

at::Tensor materialised(const ops::Mask& mask, std::int64_t n, const at::Device& device) {
  if (mask.block == 0) return {};
  const at::Tensor block = at::arange(n, at::TensorOptions(device).dtype(at::kLong)).div(mask.block, "floor");
  const at::Tensor behind = block.unsqueeze(1) - block.unsqueeze(0);  // how many blocks key j is behind i
  return mask.window == 0 ? behind.ge(0) : behind.ge(0).logical_and_(behind.lt(mask.window));
}

}  // namespace pom::nn
