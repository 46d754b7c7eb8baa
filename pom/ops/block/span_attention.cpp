#include "pom/ops/block/span_attention.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/stack.h>

#include "pom/base/error.h"
#include "pom/ops/cuda/span_attention.h"
#include "pom/ops/problem.h"

namespace pom::ops {

bool has_span_attention(c10::Device device, at::ScalarType dtype, std::int64_t head) {
  return device.is_cuda() && cuda::has_span_attention(device, dtype, head);
}

at::Tensor span_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          std::int64_t heads, const Spans& spans) {
  constexpr const char* op = "span_attention";
  check(queries.dim() == 3 && heads >= 1 && queries.size(2) % heads == 0, op,
        ": queries: expected (S, K, d) with a d that ", heads, " heads divide, got ", shape_text(queries));
  const std::int64_t S = queries.size(0), d = queries.size(2);
  check(keys.dim() == 2 && keys.size(1) == d && keys.sizes() == values.sizes(), op,
        ": keys and values: expected (M, ", d, ") both, got ", shape_text(keys), " and ", shape_text(values));
  const auto numbers = [&](const char* name, const at::Tensor& t, std::int64_t count) {
    check(t.defined() && t.dim() == 1 && t.size(0) == count && t.scalar_type() == at::kInt &&
              t.is_contiguous() && t.device() == queries.device(),
          op, ": ", name, ": expected ", count, " int32 on ", queries.device(), ", got ", shape_text(t));
  };
  numbers("queries", spans.queries, S + 1), numbers("first", spans.first, S + 1);
  numbers("rows", spans.rows, S);
  if (has_span_attention(queries.device(), queries.scalar_type(), d / heads))
    return cuda::span_attention(queries, keys, values, heads, spans);
  const at::Tensor first = spans.first.cpu(), rows = spans.rows.cpu();
  const auto in_heads = [&](const at::Tensor& x) {  // (n, d) -> (1, h, n, d / h)
    return x.unflatten(-1, {heads, -1}).transpose(0, 1).unsqueeze(0);
  };
  std::vector<at::Tensor> answers;
  for (std::int64_t s = 0; s < S; ++s) {
    const std::int64_t from = first[s].item<int>(), count = rows[s].item<int>();
    check(from >= 0 && count >= 1 && count <= spans.most && from + count <= keys.size(0), op,
          ": spans: expected rows of the ", keys.size(0), " that there are, at most ", spans.most, ", got ",
          from, " to ", from + count);
    const at::Tensor answer = at::scaled_dot_product_attention(
        in_heads(queries[s]), in_heads(keys.narrow(0, from, count)), in_heads(values.narrow(0, from, count)));
    answers.push_back(answer.squeeze(0).transpose(0, 1).flatten(1));
  }
  return at::stack(answers);
}

}  // namespace pom::ops
