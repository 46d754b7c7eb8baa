#include "pom/ops/block/past_sums.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include "pom/base/error.h"
#include "pom/ops/problem.h"

namespace pom::ops {
namespace {

// A GPU adds up many blocks in few kernels, in an order that the shapes alone decide.
at::Tensor seen_on_gpu(const PastSums& p, const at::Tensor& sums) {
  const std::int64_t n = sums.size(1);
  at::Tensor left = p.left;
  if (p.window == 0 && n == 1) {
    at::add_out(left, p.past, sums);
    return left;
  }
  const at::Tensor all = at::cat({p.past, sums}, 1);
  if (p.window == 0) {
    const at::Tensor totals = all.cumsum(1).narrow(1, 1, n);
    left.copy_(totals.narrow(1, n - 1, 1));
    return totals;
  }
  left.copy_(all.narrow(1, n, p.window));
  return all.unfold(1, p.window, 1).narrow(1, 1, n).sum(-1);
}

at::Tensor seen_in_order(const PastSums& p, const at::Tensor& sums) {
  const std::int64_t n = sums.size(1);
  at::Tensor seen = at::empty_like(sums), left = p.left;
  const at::Tensor all = p.window > 0 ? at::cat({p.past, sums}, 1) : at::Tensor();
  for (std::int64_t b = 0; b < n; ++b) {
    at::Tensor now = seen.select(1, b);
    if (p.window == 0) {
      at::add_out(now, b == 0 ? p.past.select(1, 0) : seen.select(1, b - 1), sums.select(1, b));
      continue;
    }
    now.copy_(all.select(1, b + 1));
    for (std::int64_t i = 2; i <= p.window; ++i) now.add_(all.select(1, b + i));
  }
  left.copy_(p.window == 0 ? seen.narrow(1, n - 1, 1) : all.narrow(1, n, p.window));
  return seen;
}

}  // namespace

at::Tensor seen_means(const PastSums& p, const at::Tensor& sums) {
  const at::Tensor blocks = sums.view({-1, p.blocks(), sums.size(1)});
  const at::Tensor seen = !p.past.defined() ? blocks
                          : sums.is_cuda()  ? seen_on_gpu(p, blocks)
                                            : seen_in_order(p, blocks);
  return (seen / p.tokens_seen.unsqueeze(1)).view(sums.sizes());
}

void check_past(const char* op, const PastSums& p, std::int64_t rows, std::int64_t features,
                const at::Tensor& like) {
  check(p.tokens_seen.defined() && p.tokens_seen.dim() == 1 && p.blocks() >= 1 && rows % p.blocks() == 0 &&
            p.tokens_seen.scalar_type() == like.scalar_type() && p.tokens_seen.device() == like.device(),
        op, ": tokens_seen: expected ", like.scalar_type(), " of shape (n), n blocks that divide ", rows,
        ", got ", shape_text(p.tokens_seen));
  check(p.past.defined() == p.left.defined(), op, ": left: expected room for the sums where there is a past");
  check(p.window >= 0, op, ": window: expected 0 for all blocks, or a number of them, got ", p.window);
  if (!p.past.defined()) return;
  const std::int64_t kept = std::max<std::int64_t>(p.window, 1);
  const std::vector<std::int64_t> shape = {rows / p.blocks(), kept, features};
  for (const auto& [name, sums] : {std::pair{"past", p.past}, {"left", p.left}})
    check(sums.sizes() == at::IntArrayRef(shape) && sums.scalar_type() == like.scalar_type() &&
              sums.device() == like.device(),
          op, ": ", name, ": expected ", like.scalar_type(), " of shape (", shape[0], ", ", kept, ", ",
          features, "), got ", shape_text(sums));
}

}  // namespace pom::ops
