#include "pom/ops/cuda/inference_support.h"

#include <cstdint>

#include <ATen/ATen.h>

#include "pom/kernels/portable/few_rows_gemm.h"
#include "pom/kernels/sm90/gemm/gemm.h"
#include "pom/ops/cuda/launch.h"

namespace pom::ops::cuda::sampling {

bool half_precision(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}
bool aligned(const at::Tensor& t) {
  return !t.is_contiguous() || reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 == 0;
}
at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}
Dtype dtype_of(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat8_e4m3fn ? Dtype::e4m3 : detail::kernel_dtype(t);
}

bool has_gemm(const at::Tensor& x, const at::Tensor& weight, Dtype dtype) {
  kernels::Gemm p;
  p.sizes = {x.size(0), x.size(1), weight.size(1), weight.size(0)};
  p.dtype = dtype, p.a = p.w = weight.const_data_ptr();
  if (dtype == Dtype::e4m3) p.a_scale = p.w_scale = static_cast<const float*>(p.w);  // will be there
  return weight.is_contiguous() && p.sizes.rows() > 0 && p.sizes.outputs % 8 == 0 &&
         kernels::gemm_supported(p);
}
bool few(const at::Tensor& x, const at::Tensor& weight) {
  kernels::FewRowsGemm p;
  p.sizes = {x.size(0), x.size(1), weight.size(1), weight.size(0)};
  p.a = p.w = weight.const_data_ptr();
  return half_precision(weight) && weight.is_contiguous() && kernels::rows_supported(p);
}
bool few_sums(const at::Tensor& x, const at::Tensor& weight, std::int64_t order) {
  return few(x, weight) && order <= kernels::kMostRowsOrder;
}
bool has_rows(const at::Tensor& x, const at::Tensor& weight, Dtype dtype) {
  return few(x, weight) || has_gemm(x, weight, dtype);
}
bool has_sums(std::int64_t batch, std::int64_t order, std::int64_t D) {
  constexpr std::int64_t most = 65535;  // a grid's height
  return order <= kMaxFusedOrder && kernels::sums_order(static_cast<int>(order)) && D % 8 == 0 &&
         batch <= most;
}

bool has_stream(const at::Tensor& x) {
  return x.is_contiguous() && aligned(x);
}
bool has_norm(const at::Tensor& x, const Modulation& m) {
  return has_stream(x) && (x.size(0) == 1 || m.scale.stride(0) == m.shift.stride(0));
}

Dtype gemm_dtype(const at::Tensor& weight, const Fp8& fp8) {
  return fp8.stage == Fp8::Stage::on ? Dtype::e4m3 : detail::kernel_dtype(weight);
}

bool has_gemms(const char* op, const at::Tensor& x, std::initializer_list<at::Tensor> weights, bool others,
               const Fp8& fp8) {
  bool all = others;
  for (const at::Tensor& weight : weights)
    all = all && half_precision(weight) && has_rows(x, weight, detail::kernel_dtype(weight)) &&
          (!fp8.asked() || (weight.scalar_type() == at::kBFloat16 && has_gemm(x, weight, Dtype::e4m3)));
  check(all || !fp8.asked(), op,
        ": fp8: expected a GPU of compute capability 9.0, bf16 weights of widths divisible by 16, and an ",
        "order of 1, 2, 3, 4, 6 or 8");
  return all;
}

}  // namespace pom::ops::cuda::sampling
