// mixer_layer_in_parts: the same layer as mixer_layer, as libpom.mixer_layer has it under torch.compile on
// CUDA. What only libpom can do (products whose epilogues sum over tokens, gate, and differentiate both) are
// operators of their own; plain products, casts, and the sums of biases are torch's operations, which a
// compiler joins with what stands around them, tunes, and launches with less work of the host than an
// operator would. Outside of a compiler it computes the same. B sequences, m queries, n context tokens, d
// width, kD features.
#include <algorithm>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "pom/base/error.h"
#include "pom/ops/block/training_common.h"
#include "pom/ops/block_means.h"
#include "pom/ops/composed.h"
#include "pom/ops/cuda/inference.h"
#include "pom/ops/cuda/mixer.h"
#include "pom/ops/dispatcher/meta_shapes.h"
#include "pom/ops/dispatcher/operators.h"
#include "pom/ops/dispatcher/second_order.h"
#include "pom/ops/problem.h"

namespace pom::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

#define POM_PARTS_MASK "Tensor? mask=None, int block=0, int window=0"
#define POM_PARTS_WEIGHTS "Tensor ho_weight, Tensor? ho_bias, Tensor se_weight, Tensor? se_bias"
#define POM_PARTS_MASK_ARGS const OptTensor &mask, std::int64_t block, std::int64_t window
#define POM_PARTS_WEIGHT_ARGS \
  const at::Tensor &ho_weight, const OptTensor &ho_bias, const at::Tensor &se_weight, const OptTensor &se_bias

// sigmoid(se) H, (B, m, kD). Biases in any floating dtype: the kernels add them in fp32.
constexpr const char* kGated =
    "mixer_gated(Tensor xq, Tensor xc, " POM_PARTS_WEIGHTS ", int order, " POM_PARTS_MASK ") -> Tensor";
constexpr const char* kGatedTrain =
    "mixer_gated_train(Tensor xq, Tensor xc, " POM_PARTS_WEIGHTS ", int order, " POM_PARTS_MASK
    ") -> (Tensor gated, Tensor ho, Tensor se, Tensor H)";
// From the gradient of the layer: those of both projections and, for gradients of weights, of their biases in
// fp32 and what the last product read.
constexpr const char* kGatedBackward =
    "mixer_gated_backward(Tensor dout, Tensor ag_weight, Tensor ho, Tensor se, Tensor H, bool need_w, int "
    "order, " POM_PARTS_MASK ") -> (Tensor dho, Tensor dse, Tensor dho_bias, Tensor dse_bias, Tensor gated)";
constexpr const char* kParts =
    "mixer_layer_in_parts(Tensor xq, Tensor xc, " POM_WEIGHTS ", int order, " POM_PARTS_MASK ") -> Tensor";

using GatedFn = at::Tensor(const at::Tensor&, const at::Tensor&, POM_PARTS_WEIGHT_ARGS, std::int64_t,
                           POM_PARTS_MASK_ARGS);
using Tensors4 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Tensors5 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using GatedTrainFn = Tensors4(const at::Tensor&, const at::Tensor&, POM_PARTS_WEIGHT_ARGS, std::int64_t,
                              POM_PARTS_MASK_ARGS);
using GatedBackwardFn = Tensors5(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, bool, std::int64_t, POM_PARTS_MASK_ARGS);
using PartsFn = at::Tensor(const at::Tensor&, const at::Tensor&, POM_WEIGHT_ARGS, std::int64_t,
                           POM_PARTS_MASK_ARGS);

// The tensor itself where it has the dtype: opcheck takes an operation that gives back its input for a
// mistake.
at::Tensor in_dtype(const at::Tensor& t, at::ScalarType type) {
  return t.scalar_type() == type ? t : t.to(type);
}
OptTensor raised(const OptTensor& bias, const at::Tensor& x) {
  return bias ? OptTensor(in_dtype(*bias, detail::sum_type(x))) : std::nullopt;
}

// ---- the parts ----

// Arguments checked. Nobody asks for the last product's weights here: the queries' stand for their shape.
Problem gated_problem(const char* op, const at::Tensor& xq, const at::Tensor& xc, POM_PARTS_WEIGHT_ARGS,
                      std::int64_t order, const Mask& mask) {
  const Problem p =
      check_layer(op, xq, xc, {ho_weight, {}, se_weight, {}, se_weight.t(), {}}, order, mask, {});
  for (const OptTensor& bias : {ho_bias, se_bias})
    check(!bias || (bias->dim() == 1 && bias->size(0) == p.kD() && bias->is_floating_point() &&
                    bias->device() == xq.device()),
          op, ": bias: expected ", p.kD(), " values on ", xq.device().str());
  check(!p.full, op, ": mask: expected none, of keys or block-causal, got a mask of queries and keys");
  return p;
}

at::Tensor projected(const at::Tensor& x, const at::Tensor& weight, const OptTensor& bias) {
  return at::linear(x, weight, bias ? OptTensor(bias->to(x.scalar_type())) : std::nullopt);
}

// Where there are no kernels: H as the kernels keep it, (B, kD), or of blocks (B blocks, kD), each a sequence
// of its own.
at::Tensor composed_means(const Problem& p, const at::Tensor& ho) {
  const at::Tensor powers = composed::powers(ho, p.order).to(detail::sum_type(ho));
  if (p.visible.defined()) {
    const at::Tensor sum = powers.masked_fill(p.visible.eq(0).unsqueeze(-1), 0).sum(1);
    return sum / (p.visible.sum(1, /*keepdim=*/true, sum.scalar_type()) + 1e-7);
  }
  if (p.block == 0) return powers.mean(1);
  const at::Tensor blocks = powers.unflatten(1, {-1, p.block}).mean(2);
  return seen_means(blocks, p.window).flatten(0, 1);
}
at::Tensor composed_means_backward(const Problem& p, const at::Tensor& ho, const at::Tensor& dH) {
  at::Tensor each;  // the gradient of a token's powers, (B, n, kD)
  if (p.visible.defined()) {
    const at::Tensor counts = p.visible.sum(1, /*keepdim=*/true, dH.scalar_type()) + 1e-7;
    each = (dH / counts).unsqueeze(1).expand(ho.sizes()).masked_fill(p.visible.eq(0).unsqueeze(-1), 0);
  } else if (p.block == 0) {
    each = (dH / static_cast<double>(ho.size(1))).unsqueeze(1).expand(ho.sizes());
  } else {
    const at::Tensor dmeans = seen_means_backward(dH.unflatten(0, {ho.size(0), -1}), p.window);
    each = (dmeans / static_cast<double>(p.block)).repeat_interleave(p.block, 1);
  }
  const std::vector<at::Tensor> h = ho.to(dH.scalar_type()).chunk(p.order, -1);
  std::vector<at::Tensor> d = each.chunk(p.order, -1), g, powers;
  for (std::size_t i = 0; i < h.size(); ++i) {
    g.push_back(at::gelu(h[i]));
    powers.push_back(i == 0 ? g[i] : powers[i - 1] * g[i]);
  }
  for (std::size_t i = h.size() - 1; i > 0; --i) {
    d[i - 1] = d[i - 1] + d[i] * g[i];
    d[i] = d[i] * powers[i - 1];
  }
  for (std::size_t i = 0; i < h.size(); ++i) d[i] = at::gelu_backward(d[i], h[i]);
  return at::cat(d, -1).to(ho.scalar_type());
}
// (B, m, kD) beside H: a sequence for each of its rows.
at::Tensor by_mean(const at::Tensor& x, const at::Tensor& H) {
  return x.contiguous().view({H.size(0), -1, x.size(2)});
}

bool by_kernels(const char* op, bool covers, const at::Tensor& xq) {
  const bool covered = xq.is_cuda() && path() != Path::composed && covers;
  check(covered || path() != Path::fused || !xq.is_cuda(), op,
        ": path: fused was asked for, but CUDA has no fused kernel for this mask, order or dtype");
  return covered;
}

at::Tensor gated_op(const at::Tensor& xq, const at::Tensor& xc, POM_PARTS_WEIGHT_ARGS, std::int64_t order,
                    POM_PARTS_MASK_ARGS) {
  constexpr const char* op = "mixer_gated";
  const Mask m = mask_of(mask, block, window);
  const Problem p = gated_problem(op, xq, xc, ho_weight, ho_bias, se_weight, se_bias, order, m);
  const LayerWeights w{ho_weight, tensor_of(ho_bias), se_weight, tensor_of(se_bias), {}, {}};
  if (xq.is_cuda() && path() != Path::composed)
    if (const OptTensor out = cuda::inference_gated(p, xq, xc, w)) return *out;
  if (by_kernels(op, cuda::covers(m, {}, order, xq), xq)) return cuda::layer_gated(p, xq, xc, w, nullptr);
  return composed::polynomial_mixer(projected(xc, ho_weight, ho_bias), projected(xq, se_weight, se_bias),
                                    order, m, {})
      .contiguous();
}

Tensors4 gated_train_op(const at::Tensor& xq, const at::Tensor& xc, POM_PARTS_WEIGHT_ARGS, std::int64_t order,
                        POM_PARTS_MASK_ARGS) {
  constexpr const char* op = "mixer_gated_train";
  const Mask m = mask_of(mask, block, window);
  const Problem p = gated_problem(op, xq, xc, ho_weight, ho_bias, se_weight, se_bias, order, m);
  if (by_kernels(op, cuda::covers_whole(m, order, xq), xq)) {
    cuda::Saved saved;
    const LayerWeights w{ho_weight, tensor_of(ho_bias), se_weight, tensor_of(se_bias), {}, {}};
    const at::Tensor gated = cuda::layer_gated(p, xq, xc, w, &saved);
    return {gated, saved.ho, saved.se, saved.H};
  }
  const at::Tensor ho = projected(xc, ho_weight, ho_bias), se = projected(xq, se_weight, se_bias);
  const at::Tensor H = composed_means(p, ho), gate = at::sigmoid(by_mean(se, H));
  return {(gate * H.unsqueeze(1).to(se.scalar_type())).view(se.sizes()), ho, se, H};
}

void check_saved(const char* op, const char* name, const at::Tensor& t, at::IntArrayRef shape,
                 at::ScalarType type, const at::Tensor& like) {
  check(t.sizes() == shape && t.scalar_type() == type && t.device() == like.device(), op, ": ", name,
        ": expected ", type, " of shape ", shape, " on ", like.device(), ", got ", t.scalar_type(),
        " of shape ", shape_text(t), " on ", t.device());
}

Tensors5 gated_backward_op(const at::Tensor& dout, const at::Tensor& ag_weight, const at::Tensor& ho,
                           const at::Tensor& se, const at::Tensor& H, bool need_w, std::int64_t order,
                           POM_PARTS_MASK_ARGS) {
  constexpr const char* op = "mixer_gated_backward";
  const Mask m = mask_of(mask, block, window);
  const Problem p = check_mixer(op, ho, se, order, m, {});
  const std::int64_t kD = p.kD(), sequences = se.size(0) * (p.block > 0 ? se.size(1) / p.block : 1);
  check(!p.full && (p.block == 0 || se.size(1) % p.block == 0), op,
        ": mask: expected none, of keys or of whole blocks");
  check(ag_weight.dim() == 2, op, ": ag_weight: expected (d, ", kD, "), got ", shape_text(ag_weight));
  check_saved(op, "ag_weight", ag_weight, {ag_weight.size(0), kD}, se.scalar_type(), se);
  check_saved(op, "dout", dout, {se.size(0), se.size(1), ag_weight.size(0)}, se.scalar_type(), se);
  check_saved(op, "H", H, {sequences, kD}, detail::sum_type(se), se);
  const auto part = [&](const at::Tensor& t) { return need_w ? t : empty_part(H); };
  if (by_kernels(op, cuda::covers_whole(m, order, se), se)) {
    const cuda::Saved saved{ho.contiguous(), se.contiguous(), H.contiguous()};
    const cuda::ProjectionGradients g = cuda::projection_gradients(p, dout, ag_weight, saved, need_w);
    if (!need_w) return {g.dho.view(ho.sizes()), g.dse.view(se.sizes()), part({}), part({}), empty_part(se)};
    return {g.dho.view(ho.sizes()), g.dse.view(se.sizes()), g.dho_sums.sum(0), g.dse_sums.sum(0),
            g.gated.view(se.sizes())};
  }
  const at::Tensor flow = by_mean(dout.matmul(ag_weight), H).to(H.scalar_type());
  const at::Tensor gate = at::sigmoid(by_mean(se, H).to(H.scalar_type())), gated = gate * H.unsqueeze(1);
  const at::Tensor dse = (flow * gated * (1 - gate)).to(se.scalar_type()).view(se.sizes());
  const at::Tensor dho = composed_means_backward(p, ho, (flow * gate).sum(1));
  if (!need_w) return {dho, dse, part({}), part({}), empty_part(se)};
  return {dho, dse, dho.sum({0, 1}, false, H.scalar_type()), dse.sum({0, 1}, false, H.scalar_type()),
          gated.to(se.scalar_type()).view(se.sizes())};
}

// ---- shapes only ----

at::Tensor gated_meta(const at::Tensor& xq, const at::Tensor&, POM_PARTS_WEIGHT_ARGS, std::int64_t,
                      POM_PARTS_MASK_ARGS) {
  return like_with_last(xq, ho_weight.sym_size(0));
}
Tensors4 gated_train_meta(const at::Tensor& xq, const at::Tensor& xc, POM_PARTS_WEIGHT_ARGS, std::int64_t,
                          POM_PARTS_MASK_ARGS) {
  const c10::SymInt kD = ho_weight.sym_size(0);
  const c10::SymInt rows = xc.sym_size(0) * (block > 0 ? xc.sym_size(1) / block : c10::SymInt(1));
  return {like_with_last(xq, kD), like_with_last(xc, kD), like_with_last(xq, kD),
          at::empty_symint({rows, kD}, xq.options().dtype(detail::sum_type(xq)))};
}
Tensors5 gated_backward_meta(const at::Tensor&, const at::Tensor&, const at::Tensor& ho, const at::Tensor& se,
                             const at::Tensor& H, bool need_w, std::int64_t, POM_PARTS_MASK_ARGS) {
  const auto bias = [&] { return need_w ? at::empty_symint({H.sym_size(1)}, H.options()) : empty_part(H); };
  return {like_shape(ho), like_shape(se), bias(), bias(), need_w ? like_shape(se) : empty_part(se)};
}

// ---- the layer of them ----

at::Tensor rows(const at::Tensor& x) {  // (B, n, c) -> (B n, c)
  return x.flatten(0, 1);
}

class PartsFunction : public torch::autograd::Function<PartsFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS,
                            std::int64_t order, POM_PARTS_MASK_ARGS) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = find_op<GatedTrainFn>("pom::mixer_gated_train");
    const auto [gated, ho, se, H] = op.call(xq, xc, ho_weight, raised(ho_bias, xq), se_weight,
                                            raised(se_bias, xq), order, mask, block, window);
    ctx->save_for_backward({xq, xc, ho_weight, tensor_of(ho_bias), se_weight, tensor_of(se_bias), ag_weight,
                            tensor_of(ag_bias), tensor_of(mask), ho, se, H});
    ctx->saved_data["order"] = order;
    ctx->saved_data["block"] = block;
    ctx->saved_data["window"] = window;
    return at::linear(gated, ag_weight, ag_bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list v = ctx->get_saved_variables();
    const std::int64_t order = ctx->saved_data["order"].toInt(), block = ctx->saved_data["block"].toInt(),
                       window = ctx->saved_data["window"].toInt();
    constexpr std::size_t arguments = 12;
    if (at::GradMode::is_enabled()) {
      const variable_list in = detail::aliases({v.begin(), v.begin() + 8});
      const LayerWeights w{in[2], in[3], in[4], in[5], in[6], in[7]};
      const at::Tensor out = composed::mixer_layer(in[0], in[1], w, order, {v[8], block, window}, {});
      return detail::composed_gradients({out}, grads, in, arguments);
    }
    bool needed[8] = {};
    for (std::size_t i = 0, edge = 0; i < 8; ++i)  // edges are counted over defined inputs only
      if (v[i].defined()) needed[i] = ctx->needs_input_grad(edge++);
    const bool need_w = std::any_of(needed + 2, needed + 8, [](bool one) { return one; });
    static const auto op = find_op<GatedBackwardFn>("pom::mixer_gated_backward");
    const at::Tensor &dout = grads[0], &xq = v[0], &xc = v[1];
    const auto [dho, dse, dho_bias, dse_bias, gated] =
        op.call(dout, v[6], v[9], v[10], v[11], need_w, order, optional_of(v[8]), block, window);
    variable_list result(arguments);
    if (needed[0]) result[0] = dse.matmul(v[4]);
    if (needed[1]) result[1] = dho.matmul(v[2]);
    if (needed[2]) result[2] = rows(dho).t().mm(rows(xc));
    if (needed[3]) result[3] = in_dtype(dho_bias, v[3].scalar_type());
    if (needed[4]) result[4] = rows(dse).t().mm(rows(xq));
    if (needed[5]) result[5] = in_dtype(dse_bias, v[5].scalar_type());
    if (needed[6]) result[6] = rows(dout).t().mm(rows(gated));
    if (needed[7]) result[7] = rows(dout).sum(0);
    return result;
  }
};

// A tensor with sizes of its own, not such as a compiler keeps open.
bool sized(const at::Tensor& t) {
  return !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}
// Whether it is to be taken apart: with gradients where the parts have kernels, else all but rows so few that
// the whole operator reads its weights better. What is left is composed of torch's operations, or whole.
bool apart(const at::Tensor& xq, const Mask& m, std::int64_t order, bool graph) {
  constexpr std::int64_t few = 16;
  if (path() == Path::composed || m.is_full() || xq.dim() != 3) return false;
  if (!graph) return !sized(xq) || xq.size(0) * xq.size(1) > few;
  if (xq.is_cuda()) return cuda::covers_whole(m, order, xq);  // whose saved means have a row a sequence
  return order <= kMaxFusedOrder && (m.block == 0 || (sized(xq) && xq.size(1) % m.block == 0));
}

at::Tensor layer_in_parts(const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order,
                          POM_PARTS_MASK_ARGS) {
  const auto wants = [](const OptTensor& t) { return t && t->requires_grad(); };
  const bool graph = at::GradMode::is_enabled() &&
                     (wants(xq) || wants(xc) || wants(ho_weight) || wants(ho_bias) || wants(se_weight) ||
                      wants(se_bias) || wants(ag_weight) || wants(ag_bias));
  if (!apart(xq, mask_of(mask, block, window), order, graph)) {
    static const auto whole = find_op<LayerFn>("pom::mixer_layer");
    const auto like_x = [&](const OptTensor& bias) {  // autocast has left it
      return bias ? OptTensor(in_dtype(*bias, xq.scalar_type())) : std::nullopt;
    };
    return whole.call(xq, xc, ho_weight, like_x(ho_bias), se_weight, like_x(se_bias), ag_weight, ag_bias,
                      order, mask, block, window, {}, {});
  }
  if (graph)
    return PartsFunction::apply(xq, xc, ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias, order,
                                mask, block, window);
  static const auto op = find_op<GatedFn>("pom::mixer_gated");
  return at::linear(op.call(xq, xc, ho_weight, raised(ho_bias, xq), se_weight, raised(se_bias, xq), order,
                            mask, block, window),
                    ag_weight, ag_bias);
}

// Autocast: tokens and weights in the lower dtype, tokens that are both queries and context once. The biases
// that the kernels add stay as they are.
template <c10::DeviceType Device>
at::Tensor parts_autocast(const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order,
                          POM_PARTS_MASK_ARGS) {
  constexpr c10::DispatchKey key =
      Device == at::kCUDA ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
  c10::impl::ExcludeDispatchKeyGuard guard(key);
  const auto lower = [](const at::Tensor& t) {
    const bool stays =
        !t.is_floating_point() || t.scalar_type() == at::kDouble || t.device().type() != Device;
    return stays ? t : at::autocast::cached_cast(at::autocast::get_autocast_dtype(Device), t, Device);
  };
  static const auto op = find_op<PartsFn>("pom::mixer_layer_in_parts");
  const at::Tensor queries = lower(xq), context = xq.is_same(xc) ? queries : lower(xc);
  return op.call(queries, context, lower(ho_weight), ho_bias, lower(se_weight), se_bias, lower(ag_weight),
                 ag_bias ? OptTensor(lower(*ag_bias)) : std::nullopt, order, mask, block, window);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pom, m) {
  m.def(kGated);
  m.def(kGatedTrain);
  m.def(kGatedBackward);
  m.def(kParts, torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, layer_in_parts));
}

#define POM_REGISTER_PARTS(Device)                     \
  TORCH_LIBRARY_IMPL(pom, Device, m) {                 \
    m.impl("mixer_gated", gated_op);                   \
    m.impl("mixer_gated_train", gated_train_op);       \
    m.impl("mixer_gated_backward", gated_backward_op); \
  }
POM_REGISTER_PARTS(CPU)
POM_REGISTER_PARTS(CUDA)

TORCH_LIBRARY_IMPL(pom, Meta, m) {
  m.impl("mixer_gated", gated_meta);
  m.impl("mixer_gated_train", gated_train_meta);
  m.impl("mixer_gated_backward", gated_backward_meta);
}
TORCH_LIBRARY_IMPL(pom, AutocastCPU, m) {
  m.impl("mixer_layer_in_parts", parts_autocast<at::kCPU>);
}
TORCH_LIBRARY_IMPL(pom, AutocastCUDA, m) {
  m.impl("mixer_layer_in_parts", parts_autocast<at::kCUDA>);
}

}  // namespace pom::ops
