// What runs on CUDA: kernels where pom/ops/cuda has them, the composed operations
// elsewhere. In a build without kernels everything is composed.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "pom/base/error.h"
#include "pom/ops/composed.h"
#include "pom/ops/cpu/layer.h"
#include "pom/ops/cuda/inference.h"
#include "pom/ops/cuda/mixer.h"
#include "pom/ops/dispatcher/operators.h"

namespace pom::ops {
namespace {

bool use_fused(const char* op, const Mask& mask, const Packing& packing, std::int64_t order,
               const at::Tensor& x) {
  if (path() == Path::composed) return false;
  const bool covered = cuda::covers(mask, packing, order, x);
  check(covered || path() != Path::fused, op,
        ": path: fused was asked for, but CUDA has no fused kernel for ",
        "this mask, packing, order or dtype");
  return covered;
}

at::Tensor mixer_cuda(const at::Tensor& ho, const at::Tensor& se, std::int64_t order, POM_MASK_ARGS) {
  const Mask m = mask_of(mask, block, window);
  const Packing packing = packing_of(cu_q, cu_k);
  const Problem problem = check_mixer("mixer", ho, se, order, m, packing);
  if (use_fused("mixer", m, packing, order, se)) return cuda::mix_forward(problem, ho, se);
  return composed::polynomial_mixer(ho, se, order, m, packing).contiguous();
}

at::Tensor layer_cuda(const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order,
                      POM_MASK_ARGS) {
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  const Mask m = mask_of(mask, block, window);
  const Packing packing = packing_of(cu_q, cu_k);
  const Problem problem = check_layer("mixer_layer", xq, xc, w, order, m, packing);
  if (path() != Path::composed)
    if (const OptTensor out = cuda::inference_layer(problem, xq, xc, w)) return *out;
  if (use_fused("mixer_layer", m, packing, order, xq))
    return cuda::layer_forward(problem, xq, xc, w, nullptr);
  return composed::mixer_layer(xq, xc, w, order, m, packing).contiguous();
}

void refuse_fused(const char* op) {
  check(path() != Path::fused, op, ": path: fused was asked for, but CUDA has no fused kernel for this");
}

at::Tensor summary_cuda(const at::Tensor& xc, const at::Tensor& ho_weight, const OptTensor& ho_bias,
                        std::int64_t order, const OptTensor& mask) {
  const LayerWeights w{ho_weight, tensor_of(ho_bias), {}, {}, {}, {}};
  const Problem problem = check_summary(xc, ho_weight, w.ho_bias, order, tensor_of(mask));
  if (path() != Path::composed)
    if (const OptTensor sum = cuda::inference_summary(problem, xc, ho_weight, w.ho_bias)) return *sum;
  refuse_fused("mixer_summary");
  return composed::mixer_summary(xc, w, order, tensor_of(mask));
}

at::Tensor select_cuda(const at::Tensor& xq, const at::Tensor& H, const at::Tensor& se_weight,
                       const OptTensor& se_bias, const at::Tensor& ag_weight, const OptTensor& ag_bias) {
  const LayerWeights w{{}, {}, se_weight, tensor_of(se_bias), ag_weight, tensor_of(ag_bias)};
  check_select(xq, H, w);
  if (path() != Path::composed)
    if (const OptTensor out = cuda::inference_select(xq, H, w)) return *out;
  refuse_fused("mixer_select");
  return composed::mixer_select(xq, H, w).contiguous();
}

std::tuple<at::Tensor, at::Tensor> scan_cuda(const at::Tensor& x, POM_WEIGHT_ARGS, std::int64_t order,
                                             const at::Tensor& sum, const at::Tensor& count) {
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  const Problem problem = check_scan(x, w, order, sum, count);
  if (path() != Path::composed)
    if (const auto both = cuda::inference_scan(problem, x, w, sum, count)) return *both;
  refuse_fused("mixer_scan");
  return composed::mixer_scan(x, w, order, sum, count);
}

// Reached through autograd, which asks first what is covered; but anybody may call them.

void require_covered(const char* op, const at::Tensor& x, std::int64_t order, POM_MASK_ARGS) {
  check(cuda::covers(mask_of(mask, block, window), packing_of(cu_q, cu_k), order, x), op,
        ": expected any mask but a full one, an order of at most ", kMaxFusedOrder,
        " and float32, bfloat16 or float16 on CUDA");
}
void check_part(const char* op, const char* name, const at::Tensor& t, at::IntArrayRef shape,
                at::ScalarType type, const at::Tensor& x) {
  check(t.sizes() == shape && t.scalar_type() == type && t.device() == x.device(), op, ": ", name,
        ": expected ", type, " of shape ", shape, " on ", x.device(), ", got ", t.scalar_type(), " of shape ",
        shape_text(t), " on ", t.device());
}

std::tuple<at::Tensor, at::Tensor> mixer_backward_cuda(const at::Tensor& dout, const at::Tensor& ho,
                                                       const at::Tensor& se, std::int64_t order,
                                                       POM_MASK_ARGS) {
  constexpr const char* op = "mixer_backward";
  const Problem problem =
      check_mixer(op, ho, se, order, mask_of(mask, block, window), packing_of(cu_q, cu_k));
  require_covered(op, se, order, mask, block, window, cu_q, cu_k);
  check_part(op, "dout", dout, se.sizes(), se.scalar_type(), se);
  return cuda::mix_backward(problem, dout, ho, se);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> layer_train_cuda(
    const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order, POM_MASK_ARGS) {
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  const Problem problem =
      check_layer("mixer_layer", xq, xc, w, order, mask_of(mask, block, window), packing_of(cu_q, cu_k));
  require_covered("mixer_layer", xq, order, mask, block, window, cu_q, cu_k);
  cuda::Saved saved;
  const at::Tensor out = cuda::layer_forward(problem, xq, xc, w, &saved);
  return {out, saved.ho, saved.se, saved.H};
}

Gradients8 layer_backward_cuda(const at::Tensor& dout, const at::Tensor& xq, const at::Tensor& xc,
                               POM_WEIGHT_ARGS, const at::Tensor& ho, const at::Tensor& se,
                               const at::Tensor& H, bool need_x, bool need_w, std::int64_t order,
                               POM_MASK_ARGS) {
  constexpr const char* op = "mixer_layer_backward";
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  const Problem p = check_layer(op, xq, xc, w, order, mask_of(mask, block, window), packing_of(cu_q, cu_k));
  require_covered(op, xq, order, mask, block, window, cu_q, cu_k);
  check_part(op, "dout", dout, xq.sizes(), xq.scalar_type(), xq);
  check_part(op, "ho", ho, shape_with(xc, p.kD()), xq.scalar_type(), xq);
  check_part(op, "se", se, shape_with(xq, p.kD()), xq.scalar_type(), xq);
  check_part(op, "H", H, {cpu::saved_rows(p), p.kD()}, at::kFloat, xq);
  const cuda::Saved saved{ho.contiguous(), se.contiguous(), H.contiguous()};
  const cuda::Gradients g = cuda::layer_backward(p, dout, xq, xc, w, saved, need_x, need_w);
  return {or_empty(g.xq, xq),
          or_empty(g.xc, xq),
          or_empty(g.weights.ho_weight, xq),
          or_empty(g.weights.ho_bias, xq),
          or_empty(g.weights.se_weight, xq),
          or_empty(g.weights.se_bias, xq),
          or_empty(g.weights.ag_weight, xq),
          or_empty(g.weights.ag_bias, xq)};
}

}  // namespace

TORCH_LIBRARY_IMPL(pom, CUDA, m) {
  m.impl("mixer", mixer_cuda);
  m.impl("mixer_layer", layer_cuda);
  m.impl("mixer_summary", summary_cuda);
  m.impl("mixer_select", select_cuda);
  m.impl("mixer_scan", scan_cuda);
  m.impl("mixer_backward", mixer_backward_cuda);
  m.impl("mixer_layer_train", layer_train_cuda);
  m.impl("mixer_layer_backward", layer_backward_cuda);
}

}  // namespace pom::ops
