// What blocks see of those before them, in fp64: for the tests of add_mixer with a past.
#pragma once

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

namespace pom::ops {

struct SeenBlocks {
  at::Tensor H, left;  // (R n, kD), (R, W, kD)
};

// sums (R, n, kD) of the blocks, past (R, W, kD), seen (n).
inline SeenBlocks seen_blocks(const at::Tensor& sums, const at::Tensor& past, const at::Tensor& seen,
                              std::int64_t window) {
  const std::int64_t n = sums.size(1), kept = past.size(1);
  const at::Tensor all = at::cat({past.to(at::kDouble), sums}, 1);
  std::vector<at::Tensor> means;
  for (std::int64_t b = 0; b < n; ++b) {
    const std::int64_t first = window > 0 ? b + 1 : 0;
    means.push_back(all.narrow(1, first, kept + b + 1 - first).sum(1) / seen[b].to(at::kDouble));
  }
  return {at::stack(means, 1).flatten(0, 1), window > 0 ? all.narrow(1, n, kept) : all.sum(1, true)};
}

}  // namespace pom::ops
