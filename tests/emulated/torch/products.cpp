// Operations that torch has for CUDA alone: products of 16-bit matrices whose result stays in fp32.
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

namespace emulated {
namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;

Tensor mm(const Tensor& a, const Tensor& b, ScalarType type) {
  return at::mm(a.to(type), b.to(type));
}
Tensor& mm_out(const Tensor& a, const Tensor& b, ScalarType type, Tensor& out) {
  return at::mm_out(out, a.to(type), b.to(type));
}
Tensor bmm(const Tensor& a, const Tensor& b, ScalarType type) {
  return at::bmm(a.to(type), b.to(type));
}
Tensor& bmm_out(const Tensor& a, const Tensor& b, ScalarType type, Tensor& out) {
  return at::bmm_out(out, a.to(type), b.to(type));
}
Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, ScalarType type, const Scalar& beta,
             const Scalar& alpha) {
  return at::addmm(c.to(type), a.to(type), b.to(type), beta, alpha);
}
Tensor& addmm_out(const Tensor& c, const Tensor& a, const Tensor& b, ScalarType type, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  return at::addmm_out(out, c.to(type), a.to(type), b.to(type), beta, alpha);
}
Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, ScalarType type, const Scalar& beta,
               const Scalar& alpha) {
  return at::baddbmm(c.to(type), a.to(type), b.to(type), beta, alpha);
}
Tensor& baddbmm_out(const Tensor& c, const Tensor& a, const Tensor& b, ScalarType type, const Scalar& beta,
                    const Scalar& alpha, Tensor& out) {
  return at::baddbmm_out(out, c.to(type), a.to(type), b.to(type), beta, alpha);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("mm.dtype", mm);
  m.impl("mm.dtype_out", mm_out);
  m.impl("bmm.dtype", bmm);
  m.impl("bmm.dtype_out", bmm_out);
  m.impl("addmm.dtype", addmm);
  m.impl("addmm.dtype_out", addmm_out);
  m.impl("baddbmm.dtype", baddbmm);
  m.impl("baddbmm.dtype_out", baddbmm_out);
}

}  // namespace
}  // namespace emulated
