// The schemas, and what runs on the CPU (fused kernels or the composed path) and on meta tensors (shapes
// only).
#include <ATen/ATen.h>
#include <torch/library.h>

#include "pom/base/error.h"
#include "pom/ops/block/stack_step.h"
#include "pom/ops/block/training_common.h"
#include "pom/ops/composed.h"
#include "pom/ops/cpu/layer.h"
#include "pom/ops/dispatcher/meta_shapes.h"
#include "pom/ops/dispatcher/operators.h"
#include "pom/ops/full_mask.h"

namespace pom::ops {
namespace {

using detail::sum_type;

bool use_fused(const char* op, const Problem& problem) {
  if (path() == Path::composed) return false;
  const bool covered = cpu::covers(problem);
  check(covered || path() != Path::fused, op, ": path: fused was asked for, but ",
        problem.full ? "a full mask has no fused kernel" : "this order has no fused kernel");
  return covered;
}

// The inner operators are reached through autograd, which asks first; but anybody may call them.
void require_fused(const char* op, const Problem& problem) {
  check(cpu::covers(problem), op, ": expected a mask and an order with a fused kernel, got ",
        problem.full ? std::string("a full mask") : "order " + std::to_string(problem.order));
}
void check_shape(const char* op, const char* name, const at::Tensor& t,
                 const std::vector<std::int64_t>& shape, at::ScalarType type) {
  check(t.sizes() == at::IntArrayRef(shape) && t.scalar_type() == type, op, ": ", name, ": expected ", type,
        " of shape ", at::IntArrayRef(shape), ", got ", t.scalar_type(), " of shape ", shape_text(t));
}

at::Tensor mixer_cpu(const at::Tensor& ho, const at::Tensor& se, std::int64_t order, POM_MASK_ARGS) {
  const Mask m = mask_of(mask, block, window);
  const Packing packing = packing_of(cu_q, cu_k);
  const Problem problem = check_mixer("mixer", ho, se, order, m, packing);
  if (!use_fused("mixer", problem)) return composed::polynomial_mixer(ho, se, order, m, packing).contiguous();
  return cpu::mix_forward(problem, ho, se);
}

std::tuple<at::Tensor, at::Tensor> mixer_backward_cpu(const at::Tensor& dout, const at::Tensor& ho,
                                                      const at::Tensor& se, std::int64_t order,
                                                      POM_MASK_ARGS) {
  const Problem problem =
      check_mixer("mixer_backward", ho, se, order, mask_of(mask, block, window), packing_of(cu_q, cu_k));
  require_fused("mixer_backward", problem);
  check_shape("mixer_backward", "dout", dout, se.sizes().vec(), se.scalar_type());
  return cpu::mix_backward(problem, dout, ho, se);
}

at::Tensor layer_cpu(const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order,
                     POM_MASK_ARGS) {
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  const Mask m = mask_of(mask, block, window);
  const Packing packing = packing_of(cu_q, cu_k);
  const Problem problem = check_layer("mixer_layer", xq, xc, w, order, m, packing);
  if (!use_fused("mixer_layer", problem)) {
    if (problem.full && path() == Path::automatic) return full_mask_layer(xq, xc, w, order, problem.visible);
    return composed::mixer_layer(xq, xc, w, order, m, packing).contiguous();
  }
  return cpu::layer_forward(problem, xq, xc, w, nullptr);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> layer_train_cpu(
    const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order, POM_MASK_ARGS) {
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  const Problem problem =
      check_layer("mixer_layer", xq, xc, w, order, mask_of(mask, block, window), packing_of(cu_q, cu_k));
  require_fused("mixer_layer", problem);
  cpu::Saved saved;
  const at::Tensor out = cpu::layer_forward(problem, xq, xc, w, &saved);
  return {out, saved.ho, saved.se, saved.H};
}

Gradients8 layer_backward_cpu(const at::Tensor& dout, const at::Tensor& xq, const at::Tensor& xc,
                              POM_WEIGHT_ARGS, const at::Tensor& ho, const at::Tensor& se,
                              const at::Tensor& H, bool need_x, bool need_w, std::int64_t order,
                              POM_MASK_ARGS) {
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  const Problem problem = check_layer("mixer_layer_backward", xq, xc, w, order, mask_of(mask, block, window),
                                      packing_of(cu_q, cu_k));
  constexpr const char* op = "mixer_layer_backward";
  require_fused(op, problem);
  check_shape(op, "dout", dout, xq.sizes().vec(), xq.scalar_type());
  check_shape(op, "ho", ho, shape_with(xc, problem.kD()), xq.scalar_type());
  check_shape(op, "se", se, shape_with(xq, problem.kD()), xq.scalar_type());
  check_shape(op, "H", H, {cpu::saved_rows(problem), problem.kD()}, sum_type(xq));
  check(ho.is_contiguous() && se.is_contiguous() && H.is_contiguous(), op,
        ": ho, se, H: expected what mixer_layer_train gave, got strided views");
  const cpu::Gradients g = cpu::layer_backward(problem, dout, xq, xc, w, {ho, se, H}, need_x, need_w);
  return {or_empty(g.xq, xq),
          or_empty(g.xc, xq),
          or_empty(g.weights.ho_weight, xq),
          or_empty(g.weights.ho_bias, xq),
          or_empty(g.weights.se_weight, xq),
          or_empty(g.weights.se_bias, xq),
          or_empty(g.weights.ag_weight, xq),
          or_empty(g.weights.ag_bias, xq)};
}

at::Tensor summary_cpu(const at::Tensor& xc, const at::Tensor& ho_weight, const OptTensor& ho_bias,
                       std::int64_t order, const OptTensor& mask) {
  const LayerWeights w{ho_weight, tensor_of(ho_bias), {}, {}, {}, {}};
  const Problem problem = check_summary(xc, ho_weight, w.ho_bias, order, tensor_of(mask));
  if (!use_fused("mixer_summary", problem)) return composed::mixer_summary(xc, w, order, tensor_of(mask));
  return cpu::layer_summary(problem, xc, w);
}

at::Tensor select_cpu(const at::Tensor& xq, const at::Tensor& H, const at::Tensor& se_weight,
                      const OptTensor& se_bias, const at::Tensor& ag_weight, const OptTensor& ag_bias) {
  const LayerWeights w{{}, {}, se_weight, tensor_of(se_bias), ag_weight, tensor_of(ag_bias)};
  const Problem problem = check_select(xq, H, w);
  if (path() == Path::composed) return composed::mixer_select(xq, H, w).contiguous();
  return cpu::layer_select(problem, xq, H, w);
}

std::tuple<at::Tensor, at::Tensor> scan_cpu(const at::Tensor& x, POM_WEIGHT_ARGS, std::int64_t order,
                                            const at::Tensor& sum, const at::Tensor& count) {
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  const Problem problem = check_scan(x, w, order, sum, count);
  if (!use_fused("mixer_scan", problem)) return composed::mixer_scan(x, w, order, sum, count);
  return cpu::layer_scan(problem, x, w, sum, count);
}

// ---- meta: shapes only, symbolic where the caller's are ----

at::Tensor mixer_meta(const at::Tensor& ho, const at::Tensor& se, std::int64_t order, POM_MASK_ARGS) {
  return like_shape(se);
}
std::tuple<at::Tensor, at::Tensor> mixer_backward_meta(const at::Tensor& dout, const at::Tensor& ho,
                                                       const at::Tensor& se, std::int64_t order,
                                                       POM_MASK_ARGS) {
  return {like_shape(ho), like_shape(se)};
}
at::Tensor layer_meta(const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order,
                      POM_MASK_ARGS) {
  return like_shape(xq);
}
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> layer_train_meta(
    const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order, POM_MASK_ARGS) {
  const c10::SymInt kD = ho_weight.sym_size(0);
  const bool packed = cu_k.has_value();
  const c10::SymInt sequences = packed ? cu_k->sym_size(0) - 1 : xc.sym_size(0);
  const c10::SymInt rows = cpu::saved_rows<c10::SymInt>(sequences, packed ? c10::SymInt(0) : xc.sym_size(1),
                                                        xc.sym_size(0), block, packed);
  return {like_shape(xq), like_with_last(xc, kD), like_with_last(xq, kD),
          at::empty_symint({rows, kD}, xq.options().dtype(sum_type(xq)))};
}
Gradients8 layer_backward_meta(const at::Tensor& dout, const at::Tensor& xq, const at::Tensor& xc,
                               POM_WEIGHT_ARGS, const at::Tensor& ho, const at::Tensor& se,
                               const at::Tensor& H, bool need_x, bool need_w, std::int64_t order,
                               POM_MASK_ARGS) {
  const auto x = [&](const at::Tensor& t) { return need_x ? like_shape(t) : empty_part(xq); };
  const auto w = [&](const at::Tensor& t) { return need_w ? like_shape(t) : empty_part(xq); };
  const auto b = [&](const at::Tensor& weight) {
    return need_w ? at::empty_symint({weight.sym_size(0)}, xq.options()) : empty_part(xq);
  };
  return {x(xq), x(xc), w(ho_weight), b(ho_weight), w(se_weight), b(se_weight), w(ag_weight), b(ag_weight)};
}
at::Tensor summary_meta(const at::Tensor& xc, const at::Tensor& ho_weight, const OptTensor&, std::int64_t,
                        const OptTensor&) {
  return at::empty_symint({xc.sym_size(0), ho_weight.sym_size(0)}, xc.options().dtype(sum_type(xc)));
}
at::Tensor select_meta(const at::Tensor& xq, const at::Tensor&, const at::Tensor&, const OptTensor&,
                       const at::Tensor&, const OptTensor&) {
  return like_shape(xq);
}
std::tuple<at::Tensor, at::Tensor> scan_meta(const at::Tensor& x, POM_WEIGHT_ARGS, std::int64_t,
                                             const at::Tensor& sum, const at::Tensor&) {
  return {like_shape(x), like_shape(sum)};
}

// On every device: what it is made of knows the difference.
bool stack_step_op(at::Tensor& x, at::TensorList weights, const c10::List<OptTensor>& biases,
                   const at::Tensor& modulation, at::Tensor& sums, at::Tensor& count, std::int64_t order,
                   double eps) {
  constexpr std::size_t each = 5;
  check(weights.size() % each == 0 && biases.size() == weights.size(),
        "stack_step: weights: expected five of each block and as many biases, got ", weights.size(), " and ",
        biases.size());
  std::vector<SteppedBlock> blocks;
  for (std::size_t i = 0; i < weights.size(); i += each) {
    const auto bias = [&](std::size_t n) { return tensor_of(biases.get(i + n)); };
    blocks.push_back({{weights[i], bias(0), weights[i + 1], bias(1), weights[i + 2], bias(2)},
                      {weights[i + 3], bias(3)},
                      {weights[i + 4], bias(4)}});
  }
  return stack_step(x, blocks, modulation, sums, count, order, eps);
}

std::int64_t set_path_op(std::int64_t wanted) {
  check(wanted >= 0 && wanted <= 2, "set_path: path: expected 0 (automatic), 1 (fused) or 2 (composed), got ",
        wanted);
  return static_cast<std::int64_t>(set_path(static_cast<Path>(wanted)));
}

}  // namespace

TORCH_LIBRARY(pom, m) {
  m.def(schema::mixer);
  m.def(schema::mixer_backward);
  m.def(schema::mixer_layer);
  m.def(schema::mixer_layer_train);
  m.def(schema::mixer_layer_backward);
  m.def(schema::mixer_summary);
  m.def(schema::mixer_select);
  m.def(schema::mixer_scan);
  m.def(schema::stack_step, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, stack_step_op));
  m.def(schema::set_path, set_path_op);
}

TORCH_LIBRARY_IMPL(pom, CPU, m) {
  m.impl("mixer", mixer_cpu);
  m.impl("mixer_backward", mixer_backward_cpu);
  m.impl("mixer_layer", layer_cpu);
  m.impl("mixer_layer_train", layer_train_cpu);
  m.impl("mixer_layer_backward", layer_backward_cpu);
  m.impl("mixer_summary", summary_cpu);
  m.impl("mixer_select", select_cpu);
  m.impl("mixer_scan", scan_cpu);
}

TORCH_LIBRARY_IMPL(pom, Meta, m) {
  m.impl("mixer", mixer_meta);
  m.impl("mixer_backward", mixer_backward_meta);
  m.impl("mixer_layer", layer_meta);
  m.impl("mixer_layer_train", layer_train_meta);
  m.impl("mixer_layer_backward", layer_backward_meta);
  m.impl("mixer_summary", summary_meta);
  m.impl("mixer_select", select_meta);
  m.impl("mixer_scan", scan_meta);
}

}  // namespace pom::ops
