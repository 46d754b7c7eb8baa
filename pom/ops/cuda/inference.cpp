// Rows are tokens of the whole batch. A half is a pass over the stream and two or three products, each with
// what follows it in its own kernel; between them only what the next product reads. Few rows have kernels of
// their own (pom/kernels/portable/few_rows_gemm.h), which take the norm of the stream themselves.
#include "pom/ops/cuda/inference.h"

#include <ATen/ATen.h>

#include "pom/ops/cuda/inference_products.h"

namespace pom::ops::cuda {

using namespace sampling;

bool add_mixer(at::Tensor& x, const Modulation& m, const LayerWeights& w, std::int64_t order,
               const at::Tensor& gate, const Fp8& fp8) {
  constexpr const char* op = "add_mixer";
  const Problem problem = check_stream_layer(x, w, order);
  const OnDevice device(x);
  const bool context =
      (!fp8.asked() && few_sums(x, w.ho_weight, order)) || has_sums(x.size(0), order, problem.D);
  if (!has_gemms(op, x, {w.ho_weight, w.se_weight, w.ag_weight}, has_norm(x, m) && context, fp8))
    return false;
  Queue queue{device.stream()};
  const Dtype dtype = gemm_dtype(w.ho_weight, fp8);
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype), ag = matrix({w.ag_weight, w.ag_bias}, dtype);
  const Rows normal = modulated_norm(op, x, m, w.ho_weight, dtype, queue);
  Visibility seen;
  seen.gated_here = true;
  const Means H = means(op, normal, {w.ho_weight, w.ho_bias}, dtype, order, seen, queue);
  const Rows mixed = gated(op, normal, se, H, queue);
  add_gated(op, x, mixed, ag, gate, queue);
  return true;
}

// The norm is taken once, for the context and for the queries.
bool add_mixer(at::Tensor& x, const Modulation& m, const LayerWeights& w, std::int64_t order,
               const at::Tensor& gate, const PastSums& past, const Fp8& fp8) {
  constexpr const char* op = "add_mixer";
  const Problem problem = check_stream_layer(x, w, order);
  const OnDevice device(x);
  const bool context =
      (!fp8.asked() && few_sums(x, w.ho_weight, order)) || has_sums(x.size(0), order, problem.D);
  if (!has_gemms(op, x, {w.ho_weight, w.se_weight, w.ag_weight}, has_norm(x, m) && context, fp8))
    return false;
  Queue queue{device.stream()};
  const Dtype dtype = gemm_dtype(w.ho_weight, fp8);
  const bool fews = dtype != Dtype::e4m3 && few_sums(x, w.ho_weight, order);
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype), ag = matrix({w.ag_weight, w.ag_bias}, dtype);
  const Rows normal = modulated_norm(op, x, m, w.ho_weight, dtype, queue);
  const Dense ho{w.ho_weight, w.ho_bias};
  Means H;
  if (!past.past.defined()) {  // 1e-7 does not count beside one token
    Visibility seen;
    seen.gated_here = true;
    H = means(op, normal, ho, dtype, order, seen, queue);
  } else if (!fews && folds(past)) {
    H = means_with_past(op, normal, ho, dtype, order, past, queue);
  } else {
    H = means_from(seen_means(past, sums_of(op, normal, ho, dtype, order, {}, queue)), dtype);
    queue.settled = false;  // what came between
  }
  add_gated(op, x, gated(op, normal, se, H, queue), ag, gate, queue);
  return true;
}

bool add_selection(at::Tensor& x, const Modulation& m, const at::Tensor& H, const LayerWeights& w,
                   const at::Tensor& gate, const Fp8& fp8) {
  constexpr const char* op = "add_selection";
  const OnDevice device(x);
  if (!has_gemms(op, x, {w.se_weight, w.ag_weight}, has_norm(x, m), fp8)) return false;
  Queue queue{device.stream()};
  const Dtype dtype = gemm_dtype(w.se_weight, fp8);
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype), ag = matrix({w.ag_weight, w.ag_bias}, dtype);
  const Rows normal = modulated_norm(op, x, m, w.se_weight, dtype, queue);
  add_gated(op, x, gated(op, normal, se, means_from(H, dtype, fp8.means), queue), ag, gate, queue);
  return true;
}

bool add_feed_forward(at::Tensor& x, const Modulation& m, const Dense& up, const Dense& down,
                      const at::Tensor& gate, const Fp8& fp8) {
  constexpr const char* op = "add_feed_forward";
  const OnDevice device(x);
  if (!has_gemms(op, x, {up.weight, down.weight}, has_norm(x, m), fp8)) return false;
  check_hidden(op, x, fp8);
  Queue queue{device.stream()};
  const Dtype dtype = gemm_dtype(up.weight, fp8);
  const Matrix first = matrix(up, dtype), second = matrix(down, dtype);
  const Rows normal = modulated_norm(op, x, m, up.weight, dtype, queue);
  const Rows between = hidden(op, normal, first, up.weight, fp8, queue);
  add_gated(op, x, between, second, gate, queue);
  return true;
}

// The output of a network has few columns, perhaps no multiple of 8, and goes to fp32: its product may be
// cuBLAS's, and is rounded as others are.
bool modulated_linear(const at::Tensor& x, const Modulation& m, const Dense& dense, at::Tensor& y,
                      const Fp8& fp8) {
  constexpr const char* op = "modulated_linear";
  const OnDevice device(x);
  const bool gemm = has_gemms(op, x, {dense.weight}, has_norm(x, m), fp8);
  if (!half_precision(dense.weight) || !has_norm(x, m)) return false;
  const Dtype dtype = gemm_dtype(dense.weight, fp8);
  Queue queue{device.stream()};
  const Rows normal = modulated_norm(op, x, m, dense.weight, dtype, queue);
  if (!gemm) {
    y.copy_(at::linear(normal.values, dense.weight, dense.bias));
    return true;
  }
  const bool direct = has_stream(y) && y.scalar_type() == dense.weight.scalar_type();
  at::Tensor out = direct ? y : at::empty(y.sizes(), dense.weight.options());
  store(op, normal, matrix(dense, dtype), kernels::Activation::none, out, nullptr, queue);
  if (!direct) y.copy_(out);
  return true;
}

bool add_linear(at::Tensor& x, const at::Tensor& y, const Dense& dense, const at::Tensor& gate,
                const Fp8& fp8) {
  constexpr const char* op = "add_linear";
  const OnDevice device(x);
  if (!has_gemms(op, x, {dense.weight}, has_stream(x), fp8)) return false;
  const Dtype dtype = gemm_dtype(dense.weight, fp8);
  const at::Tensor values = y.to(dense.weight.scalar_type()).contiguous();
  if (!aligned(values)) return false;
  Queue queue{device.stream()};
  const Rows rows = dtype == Dtype::e4m3 ? quantized(op, values, queue.stream) : Rows{values, {}};
  add_gated(op, x, rows, matrix(dense, dtype), gate, queue);
  return true;
}

std::string fp8_refusal(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  int major = 0, minor = 0;
  for (const auto& [value, attribute] : {std::pair{&major, cudaDevAttrComputeCapabilityMajor},
                                         std::pair{&minor, cudaDevAttrComputeCapabilityMinor}})
    check_launch("fp8", cudaDeviceGetAttribute(value, attribute, guard.current_device().index()));
  if (kernels::gemm_device()) return {};
  return pom::detail::concat("fp8 needs a GPU of compute capability 9.0, this one has ", major, ".", minor);
}

}  // namespace pom::ops::cuda
