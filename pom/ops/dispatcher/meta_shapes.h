// Results of operators on the meta device: shapes only, symbolic where the caller's are.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace pom::ops {

inline at::Tensor like_with_last(const at::Tensor& x, const c10::SymInt& last) {
  std::vector<c10::SymInt> shape(x.sym_sizes().begin(), x.sym_sizes().end());
  shape.back() = last;
  return at::empty_symint(shape, x.options());
}
inline at::Tensor like_shape(const at::Tensor& x) {
  return at::empty_symint(x.sym_sizes(), x.options());
}

}  // namespace pom::ops
