// What blocks see of each other under a block-causal mask, from the means of the blocks: (S, b, c) for S
// sequences of b blocks. Sums have a fixed order, and a block that is not seen is not touched, not even by 0.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pom::ops {

// Block i gets the mean of the last `window` blocks up to itself, of all where it is 0; and the gradient of
// that.
at::Tensor seen_means(const at::Tensor& means, std::int64_t window);
at::Tensor seen_means_backward(const at::Tensor& grad, std::int64_t window);

}  // namespace pom::ops
