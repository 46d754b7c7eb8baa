#include "pom/ops/cuda/inference_products.h"

#include <ATen/ATen.h>

#include "pom/kernels/portable/residual_norm.h"
#include "pom/ops/cuda/split_k.h"

namespace pom::ops::cuda::sampling {
namespace {

// A gate of the tuning: tiles of one run, of two, or of any number have kernels of their own.
const char* kind_of(kernels::GateRuns runs) {
  return runs == kernels::GateRuns::one ? "gate" : runs == kernels::GateRuns::two ? "gate2" : "gate any";
}

}  // namespace

Rows gated(const char* op, const Rows& queries, const Matrix& se, const Means& m, Queue& queue) {
  const at::Tensor& weight = se.weight.values;
  Rows r;
  r.values = at::empty({queries.values.size(0), queries.values.size(1), weight.size(0)}, weight.options());
  if (const auto few = rows_of(queries, se, queue.settled)) {
    check_launch(op,
                 kernels::rows_gate(*few, {m.runs, m.H.const_data_ptr<float>(), r.values.mutable_data_ptr()},
                                    queue.stream));
    queue.settled = true;
    return r;
  }
  queue.settled = false;
  const kernels::Gemm p = gemm_of(queries, se);
  kernels::GateEpilogue epilogue;
  epilogue.runs = m.runs, epilogue.H = floats_of(m.H), epilogue.partial = floats_of(m.partial);
  epilogue.out_dtype = p.dtype, epilogue.out = r.values.mutable_data_ptr(),
  epilogue.out_scale = floats_of(m.largest);
  const Run run = [&](const kernels::Gemm& q) { return kernels::gemm_gate(q, epilogue, queue.stream); };
  launch(op, p, kind_of(kernels::gate_runs(p.sizes, m.runs)), queue.stream, run, run);
  r.scale = m.largest, r.scale_rows = p.sizes.tokens;
  return r;
}

namespace {

// Rows (B, d) that can be read two values at a time.
at::Tensor in_pairs(const at::Tensor& rows) {
  const bool fits =
      reinterpret_cast<std::uintptr_t>(rows.const_data_ptr()) % 8 == 0 && rows.stride(0) % 2 == 0;
  return fits ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

}  // namespace

void add_gated(const char* op, at::Tensor& x, const Rows& y, const Matrix& w, const at::Tensor& gates,
               Queue& queue) {
  if (const auto few = rows_of(y, w, queue.settled)) {
    check_launch(
        op, kernels::rows_residual(*few, {x.mutable_data_ptr<float>(), floats_of(gates), gates.stride(0)},
                                   queue.stream));
    queue.settled = true;
    return;
  }
  queue.settled = false;
  const at::Tensor gate = in_pairs(gates);
  kernels::ResidualEpilogue epilogue;
  epilogue.x = x.mutable_data_ptr<float>(), epilogue.gate = floats_of(gate),
  epilogue.gate_stride = gate.stride(0);
  const Run run = [&](const kernels::Gemm& q) { return kernels::gemm_residual(q, epilogue, queue.stream); };
  at::Tensor scratch;
  const Run rehearse = [&](const kernels::Gemm& q) {  // adding up is not to be repeated
    if (!scratch.defined()) scratch = at::zeros_like(x);
    kernels::ResidualEpilogue aside = epilogue;
    aside.x = scratch.mutable_data_ptr<float>();
    return kernels::gemm_residual(q, aside, queue.stream);
  };
  kernels::Gemm p = gemm_of(y, w);
  const std::vector<at::Tensor> memory = split_k(p, Follows::add, x, queue.stream);
  launch(op, p, "residual", queue.stream, run, rehearse);
}

void store(const char* op, const Rows& a, const Matrix& w, kernels::Activation activation, at::Tensor& out,
           const float* out_scale, Queue& queue) {
  if (const auto few = rows_of(a, w, queue.settled)) {
    const kernels::RowsStore epilogue{activation, dtype_of(out), out.mutable_data_ptr()};
    check_launch(op, kernels::rows_store(*few, epilogue, queue.stream));
    queue.settled = true;
    return;
  }
  queue.settled = false;
  kernels::StoreEpilogue epilogue;
  epilogue.activation = activation, epilogue.out_dtype = dtype_of(out);
  epilogue.out = out.mutable_data_ptr(), epilogue.out_scale = out_scale;
  const Run run = [&](const kernels::Gemm& q) { return kernels::gemm_store(q, epilogue, queue.stream); };
  kernels::Gemm p = gemm_of(a, w);
  const std::vector<at::Tensor> memory = split_k(p, Follows::store, out, queue.stream);
  launch(op, p, activation == kernels::Activation::gelu ? "gelu" : "store", queue.stream, run, run);
}

Rows hidden(const char* op, const Rows& a, const Matrix& up, const at::Tensor& weight, const Fp8& fp8,
            Queue& queue) {
  const bool e4m3 = dtype_of(a.values) == Dtype::e4m3;
  const std::int64_t batch = a.values.size(0), tokens = a.values.size(1);
  const at::ScalarType type = e4m3 ? at::kFloat8_e4m3fn : weight.scalar_type();
  Rows r;
  r.values = at::empty({batch, tokens, weight.size(0)}, weight.options().dtype(type));
  if (e4m3) r.scale = fp8.hidden, r.scale_rows = batch * tokens;
  store(op, a, up, kernels::Activation::gelu, r.values, floats_of(r.scale), queue);
  if (fp8.stage != Fp8::Stage::measuring) return r;
  kernels::LargestParams p;
  p.count = r.values.numel(), p.dtype = dtype_of(r.values), p.x = r.values.const_data_ptr();
  p.largest = fp8.hidden.mutable_data_ptr<float>();
  check_launch(op, kernels::largest_value(p, queue.stream));
  queue.settled = false;
  return r;
}

void check_hidden(const char* op, const at::Tensor& x, const Fp8& fp8) {
  if (!fp8.asked()) return;
  check(fp8.hidden.defined() && fp8.hidden.numel() == 1 && fp8.hidden.scalar_type() == at::kFloat &&
            fp8.hidden.device() == x.device(),
        op, ": fp8: expected a scale on ", x.device());
}

}  // namespace pom::ops::cuda::sampling
