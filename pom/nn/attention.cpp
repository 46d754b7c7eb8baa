#include "pom/nn/attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include "pom/base/error.h"
#include "pom/ops/block/lowered_linear.h"

namespace pom::nn {

AttentionImpl::AttentionImpl(std::int64_t dim, std::int64_t heads) : heads_(heads) {
  check(dim >= 1, "Attention: dim: expected at least 1, got ", dim);
  check(heads >= 1 && dim % heads == 0, "Attention: heads: expected a divisor of dim = ", dim, ", got ",
        heads);
  qkv = register_module("qkv", torch::nn::Linear(dim, 3 * dim));
  proj = register_module("proj", torch::nn::Linear(dim, dim));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const at::Tensor mixed = attend(ops::lowered_linear(x, qkv->weight, qkv->bias), heads_);
  return ops::lowered_linear(mixed, proj->weight, proj->bias);
}

at::Tensor attend(const at::Tensor& qkv, std::int64_t heads) {
  const std::int64_t B = qkv.size(0), N = qkv.size(1), d = qkv.size(2) / 3;
  const at::Tensor parts =
      qkv.view({B, N, 3, heads, d / heads}).permute({2, 0, 3, 1, 4});  // (3, B, heads, N, d / heads)
  const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
  return mixed.transpose(1, 2).reshape({B, N, d});
}

}  // namespace pom::nn
