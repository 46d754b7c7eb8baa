#include "pom/ops/block_means.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros_like.h>

namespace pom::ops {
namespace {

// Block i holds what block i - distance held, or 0.
at::Tensor moved(const at::Tensor& x, std::int64_t distance) {
  const std::int64_t far = std::abs(distance), left = x.size(1) - far;
  if (left <= 0) return at::zeros_like(x);
  return distance >= 0 ? at::constant_pad_nd(x.narrow(1, 0, left), {0, 0, far, 0})
                       : at::constant_pad_nd(x.narrow(1, far, left), {0, 0, 0, far});
}

// Of each block with `window` - 1 before it (sign 1) or after it (-1), put together of stretches of 1, 2, 4,
// …
at::Tensor sums(const at::Tensor& x, std::int64_t window, std::int64_t sign) {
  at::Tensor total, stretch = x;
  for (std::int64_t length = 1, done = 0; length <= window; length *= 2) {
    if (window & length) {
      total = total.defined() ? total + moved(stretch, sign * done) : stretch;
      done += length;
    }
    if (2 * length <= window) stretch = stretch + moved(stretch, sign * length);
  }
  return total;
}

std::int64_t reach(const at::Tensor& x, std::int64_t window) {
  return window > 0 ? std::min(window, x.size(1)) : x.size(1);
}
at::Tensor counts(const at::Tensor& x, std::int64_t window) {  // (b, 1)
  return at::arange(1, x.size(1) + 1, x.options()).clamp_max(static_cast<double>(window)).unsqueeze(1);
}

}  // namespace

at::Tensor seen_means(const at::Tensor& means, std::int64_t window) {
  const std::int64_t most = reach(means, window);
  return sums(means, most, 1) / counts(means, most);
}

at::Tensor seen_means_backward(const at::Tensor& grad, std::int64_t window) {
  const std::int64_t most = reach(grad, window);
  return sums(grad / counts(grad, most), most, -1);
}

}  // namespace pom::ops
