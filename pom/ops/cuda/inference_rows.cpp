#include "pom/ops/cuda/inference_rows.h"

#include <ATen/ATen.h>

#include "pom/kernels/portable/residual_norm.h"
#include "pom/ops/cuda/tile_tuning.h"

namespace pom::ops::cuda::sampling {

Matrix matrix(const Dense& dense, Dtype dtype, std::int64_t order) {
  PreparedWeights& prepared = PreparedWeights::current();
  return {prepared.get(dense.weight, {dtype == Dtype::e4m3 ? Form::e4m3 : Form::rows, order}),
          prepared.get(dense.bias, {Form::bias, order})};
}

const float* floats_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

kernels::Gemm gemm_of(const Rows& a, const Matrix& w) {
  kernels::Gemm p;
  p.sizes = {a.values.size(0), a.values.size(1), a.values.size(2), w.weight.values.size(0)};
  p.dtype = dtype_of(a.values);
  p.a = a.values.const_data_ptr(), p.w = w.weight.values.const_data_ptr();
  p.bias = floats_of(w.bias.values);
  p.a_scale = floats_of(a.scale), p.w_scale = floats_of(w.weight.scale), p.scale_rows = a.scale_rows;
  return p;
}

void launch(const char* op, kernels::Gemm p, const char* kind, cudaStream_t stream, const Run& run,
            const Run& rehearse) {
  if (PreparedWeights::current().frozen()) {
    tune(p, kind, stream, rehearse);
    p.steady = detail::capturing(stream);
  }
  check_launch(op, run(p));
}

std::optional<kernels::FewRowsGemm> rows_of(const Rows& a, const Matrix& w, bool settled) {
  kernels::FewRowsGemm p;
  p.sizes = {a.values.size(0), a.values.size(1), a.values.size(2), w.weight.values.size(0)};
  if (w.weight.scale.defined()) return {};  // e4m3
  p.dtype = dtype_of(w.weight.values), p.settled = settled;
  p.a = a.values.const_data_ptr(), p.w = w.weight.values.const_data_ptr();
  p.bias = floats_of(w.bias.values);
  if (a.norm)
    p.norm = {floats_of(a.norm->scale), floats_of(a.norm->shift), a.norm->scale.stride(0),
              static_cast<float>(a.norm->eps)};
  return kernels::rows_supported(p) ? std::optional(p) : std::nullopt;
}

Rows modulated_norm(const char* op, const at::Tensor& x, const Modulation& m, const at::Tensor& weight,
                    Dtype dtype, Queue& queue) {
  const Rows itself{x, {}, &m};
  if (dtype != Dtype::e4m3 && few(x, weight) && rows_of(itself, {{weight, {}}, {}}, false)) return itself;
  queue.settled = false;
  const bool e4m3 = dtype == Dtype::e4m3;
  Rows r;
  r.values = at::empty(x.sizes(), x.options().dtype(e4m3 ? at::kFloat8_e4m3fn : weight.scalar_type()));
  if (e4m3) r.scale = floats({x.size(0) * x.size(1)}, x);
  kernels::StreamNormParams p;
  p.batch = x.size(0), p.tokens = x.size(1), p.width = x.size(2);
  p.x = x.data_ptr<float>(), p.eps = static_cast<float>(m.eps);
  p.scale = floats_of(m.scale), p.shift = floats_of(m.shift), p.stride = m.scale.stride(0);
  p.out_dtype = dtype, p.out = r.values.mutable_data_ptr();
  if (e4m3) p.row_scale = r.scale.mutable_data_ptr<float>();
  check_launch(op, kernels::stream_norm(p, queue.stream));
  return r;
}

Rows quantized(const char* op, const at::Tensor& x, cudaStream_t stream) {
  Rows r;
  r.values = at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn));
  r.scale = floats({x.size(0) * x.size(1)}, x);
  kernels::QuantizeParams p;
  p.rows = x.size(0) * x.size(1), p.width = x.size(2), p.dtype = detail::kernel_dtype(x);
  p.x = x.const_data_ptr(), p.out = r.values.mutable_data_ptr();
  p.scale = r.scale.mutable_data_ptr<float>();
  check_launch(op, kernels::quantize_rows(p, stream));
  return r;
}

}  // namespace pom::ops::cuda::sampling
