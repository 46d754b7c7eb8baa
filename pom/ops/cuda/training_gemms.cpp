#include "pom/ops/cuda/training_gemms.h"

#include <ATen/ops/empty.h>

#include "pom/kernels/sm90/gemm/gemm_backward.h"
#include "pom/ops/cuda/launch.h"

namespace pom::ops::cuda {
namespace {

using detail::check_launch;

// A pass over a weight of `inputs` columns, read and written, saves several over the rows' features.
bool pays(std::int64_t rows, std::int64_t inputs) {
  return 2 * rows >= inputs;
}

bool half_precision(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}
bool aligned(const at::Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 == 0;
}
at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}
at::Tensor raised(const at::Tensor& bias) {
  return bias.defined() ? bias.to(at::kFloat).contiguous() : at::Tensor();
}
at::Tensor wider(const at::Tensor& x, std::int64_t last) {  // (B, n, last)
  return at::empty({x.size(0), x.size(1), last}, x.options());
}
const float* floats_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

// x (B, n, K), contiguous, times (N, K).
kernels::Gemm gemm_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {}) {
  kernels::Gemm p;
  p.sizes = {x.size(0), x.size(1), x.size(2), weight.size(0)};
  p.dtype = detail::kernel_dtype(x);
  p.a = x.const_data_ptr(), p.w = weight.const_data_ptr(), p.bias = floats_of(bias);
  return p;
}

bool has_gemm(const kernels::GemmSizes& sizes, kernels::Dtype dtype, const void* a) {
  constexpr std::int64_t most = 65535;  // a grid's height
  kernels::Gemm p;
  p.sizes = sizes, p.dtype = dtype, p.a = p.w = a;
  return sizes.batch <= most && sizes.rows() > 0 && kernels::gemm_supported(p);
}
// For x (B, n, `inputs`) times (outputs, inputs); a weight that is made here is aligned.
bool has_gemm(const at::Tensor& x, std::int64_t inputs, std::int64_t outputs) {
  return half_precision(x) && x.is_contiguous() && x.size(2) == inputs &&
         has_gemm({x.size(0), x.size(1), inputs, outputs}, detail::kernel_dtype(x), x.const_data_ptr());
}
// The same for a tensor like x that is yet to be made, and for its way back.
bool has_both(const at::Tensor& x, std::int64_t outputs, at::ScalarType dtype) {
  alignas(16) static constexpr char anywhere[16] = {};
  const std::int64_t d = x.size(2);
  const auto type = dtype == at::kHalf ? kernels::Dtype::fp16 : kernels::Dtype::bf16;
  return (dtype == at::kHalf || dtype == at::kBFloat16) && outputs % 32 == 0 &&
         pays(x.size(0) * x.size(1), d) && has_gemm({x.size(0), x.size(1), d, outputs}, type, anywhere);
}
bool has_weight(const at::Tensor& weight) {
  return weight.is_contiguous() && aligned(weight);
}
// dout (B, n, K) times a weight (K, N), whose transpose is made.
bool has_backward(const at::Tensor& dout, const at::Tensor& weight) {
  return has_gemm(dout, weight.size(0), weight.size(1)) && has_weight(weight) && weight.size(1) % 32 == 0 &&
         pays(dout.size(0) * dout.size(1), weight.size(0));
}

at::Tensor transposed_of(const at::Tensor& weight, const at::Tensor& there, cudaStream_t stream) {
  if (there.defined()) return there;
  at::Tensor to = at::empty({weight.size(1), weight.size(0)}, weight.options());
  check_launch("transpose",
               kernels::transpose(
                   {weight.size(0), weight.size(1), weight.const_data_ptr(), to.mutable_data_ptr()}, stream));
  return to;
}

}  // namespace

bool has_mixer_gemms(const at::Tensor& x, std::int64_t features, std::int64_t order, at::ScalarType dtype) {
  return order >= 1 && features % order == 0 &&
         kernels::context_order(static_cast<int>(order), features / order) && has_both(x, features, dtype);
}
bool has_feed_forward_gemms(const at::Tensor& x, std::int64_t hidden, at::ScalarType dtype) {
  return has_both(x, hidden, dtype);
}

std::optional<Context> context_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    std::int64_t order, cudaStream_t stream, const at::Tensor& in_order) {
  constexpr const char* op = "mixer_layer";
  const std::int64_t kD = weight.size(0), d = weight.size(1);
  if (!kernels::context_order(static_cast<int>(order), kD / order) || !has_gemm(x, d, kD) ||
      !has_weight(weight))
    return {};
  const at::Tensor b = raised(bias);
  kernels::Gemm p = gemm_of(x, in_order.defined() ? in_order : weight, b);
  if (!in_order.defined()) p.factors = static_cast<int>(order);  // it is read where it stands
  const at::Tensor partial = floats({kernels::sums_slots(p.sizes, {}), kD}, x);
  Context r{wider(x, kD), floats({x.size(0), kD}, x)};
  kernels::ContextEpilogue epilogue;
  epilogue.order = static_cast<int>(order), epilogue.partial = partial.mutable_data_ptr<float>();
  epilogue.ho = r.ho.mutable_data_ptr();
  check_launch(op, kernels::gemm_context(p, epilogue, stream));
  kernels::FoldParams fold;
  fold.sizes = p.sizes, fold.partial = partial.const_data_ptr<float>();
  fold.H = r.H.mutable_data_ptr<float>();
  check_launch(op, kernels::fold_sums(fold, stream));
  return r;
}

std::optional<Queries> gate_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                 const at::Tensor& H, cudaStream_t stream) {
  if (!has_gemm(x, weight.size(1), weight.size(0)) || !has_weight(weight)) return {};
  const at::Tensor b = raised(bias);
  const kernels::Gemm p = gemm_of(x, weight, b);
  Queries r{wider(x, weight.size(0)), wider(x, weight.size(0))};
  kernels::GateEpilogue epilogue;
  epilogue.H = H.const_data_ptr<float>(), epilogue.out_dtype = p.dtype;
  epilogue.out = r.gated.mutable_data_ptr(), epilogue.before = r.se.mutable_data_ptr();
  check_launch("mixer_layer", kernels::gemm_gate(p, epilogue, stream));
  return r;
}

std::optional<GateGradients> gate_backward_gemm(const at::Tensor& dout, const at::Tensor& weight,
                                                const at::Tensor& se, const at::Tensor& H, bool for_weights,
                                                cudaStream_t stream, const at::Tensor& transposed) {
  constexpr const char* op = "mixer_layer_backward";
  if (!has_backward(dout, weight) || !aligned(se) || !aligned(H)) return {};
  const std::int64_t kD = weight.size(1);
  const at::Tensor w = transposed_of(weight, transposed, stream);
  const kernels::Gemm p = gemm_of(dout, w);
  const at::Tensor partial = floats({kernels::sums_slots(p.sizes, {}), kD}, dout);
  GateGradients r{at::empty(se.sizes(), se.options()), {}, floats(H.sizes(), dout), {}};
  kernels::GateBackwardEpilogue epilogue;
  epilogue.se = se.const_data_ptr(), epilogue.H = H.const_data_ptr<float>();
  epilogue.dse = r.dse.mutable_data_ptr(), epilogue.dH = partial.mutable_data_ptr<float>();
  if (for_weights) {
    r.gated = at::empty(se.sizes(), se.options());
    r.dse_sums = floats({kernels::gemm_row_tiles(p.sizes.rows()), kD}, dout);
    epilogue.gated = r.gated.mutable_data_ptr(), epilogue.dse_sums = r.dse_sums.mutable_data_ptr<float>();
  }
  check_launch(op, kernels::gemm_gate_backward(p, epilogue, stream));
  check_launch(op, kernels::add_slots(
                       {p.sizes, partial.const_data_ptr<float>(), r.dH.mutable_data_ptr<float>()}, stream));
  return r;
}

bool has_gelu_gemm(const at::Tensor& x, const at::Tensor& weight) {
  return has_gemm(x, weight.size(1), weight.size(0)) && has_weight(weight);
}

Activated gelu_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool keep,
                    cudaStream_t stream) {
  const at::Tensor b = raised(bias);
  const kernels::Gemm p = gemm_of(x, weight, b);
  Activated r{keep ? wider(x, weight.size(0)) : at::Tensor(), wider(x, weight.size(0))};
  kernels::StoreEpilogue epilogue;
  epilogue.activation = kernels::Activation::gelu, epilogue.out_dtype = p.dtype,
  epilogue.out = r.after.mutable_data_ptr();
  if (keep) epilogue.before = r.before.mutable_data_ptr();
  check_launch("feed_forward", kernels::gemm_store(p, epilogue, stream));
  return r;
}

std::optional<GeluGradients> gelu_backward_gemm(const at::Tensor& dout, const at::Tensor& weight,
                                                const at::Tensor& before, cudaStream_t stream,
                                                const at::Tensor& transposed) {
  if (!has_backward(dout, weight) || !aligned(before)) return {};
  const at::Tensor w = transposed_of(weight, transposed, stream);
  const kernels::Gemm p = gemm_of(dout, w);
  GeluGradients r{at::empty(before.sizes(), before.options()), at::empty(before.sizes(), before.options()),
                  floats({kernels::gemm_row_tiles(p.sizes.rows()), weight.size(1)}, dout)};
  kernels::GeluBackwardEpilogue epilogue;
  epilogue.before = before.const_data_ptr(), epilogue.dbefore = r.dbefore.mutable_data_ptr();
  epilogue.after = r.after.mutable_data_ptr(), epilogue.dbefore_sums = r.sums.mutable_data_ptr<float>();
  check_launch("feed_forward", kernels::gemm_gelu_backward(p, epilogue, stream));
  return r;
}

}  // namespace pom::ops::cuda
