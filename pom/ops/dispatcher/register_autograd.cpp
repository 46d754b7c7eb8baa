// Derivatives and autocast. First order: the fused forward saves the two projections and the fused backward
// uses them. Second order and forward mode: the composed operations, which ATen differentiates. torch.func is
// refused.
#include <ATen/ATen.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "pom/base/error.h"
#include "pom/ops/composed.h"
#include "pom/ops/cuda/mixer.h"
#include "pom/ops/dispatcher/operators.h"
#include "pom/ops/dispatcher/second_order.h"
#include "pom/ops/problem.h"

namespace pom::ops {
namespace {

using detail::aliases, detail::composed_gradients;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_dual(const at::Tensor& t) {
  return t.defined() && t._fw_grad(0).defined();
}
bool wants_grad(const at::Tensor& t) {
  return t.defined() && t.requires_grad();
}

template <bool (*Test)(const at::Tensor&), class... Tensors>
bool any(const Tensors&... tensors) {
  return (Test(tensors) || ...);
}

void refuse_functorch(const char* op) {
  const auto& tls = at::functorch::functorchTLSAccessor();
  if (!tls) return;
  try {
    tls->checkSupportsCppAutogradFunction();
  } catch (const c10::Error&) {
    fail(op, ": torch.func transforms (grad, vjp, jvp, vmap, …) are not supported by the fused operator; ",
         "use torch.autograd, or the plain-torch libpom.reference under torch.func");
  }
}

// A tensor with sizes and values of its own, not one that a tracer follows: only those can be checked here.
bool concrete(const at::Tensor& t) {
  return !t.key_set().has(c10::DispatchKey::Python) && !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// What is differentiated through the composed operations: full masks, high degrees, on CUDA some others.
bool composed_only(const char* op, const at::Tensor& x, const Mask& mask, const Packing& packing,
                   std::int64_t order) {
  if (path() == Path::composed) return true;
  const bool uncovered =
      mask.is_full() || order > kMaxFusedOrder || (x.is_cuda() && !cuda::covers(mask, packing, order, x));
  check(!uncovered || path() != Path::fused, op, ": path: fused was asked for, but ",
        mask.is_full()           ? "a full mask has no fused kernel"
        : order > kMaxFusedOrder ? "this order has no fused kernel"
                                 : "CUDA has no fused kernel for this mask, packing or dtype");
  return uncovered;
}

class MixerFunction : public torch::autograd::Function<MixerFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ho, const at::Tensor& se,
                            std::int64_t order, const OptTensor& mask, std::int64_t block,
                            std::int64_t window, const OptTensor& cu_q, const OptTensor& cu_k) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = find_op<MixerFn>("pom::mixer");
    ctx->save_for_backward({ho, se, tensor_of(mask), tensor_of(cu_q), tensor_of(cu_k)});
    ctx->saved_data["order"] = order;
    ctx->saved_data["block"] = block;
    ctx->saved_data["window"] = window;
    return op.call(ho, se, order, mask, block, window, cu_q, cu_k);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list v = ctx->get_saved_variables();
    const std::int64_t order = ctx->saved_data["order"].toInt(), block = ctx->saved_data["block"].toInt(),
                       window = ctx->saved_data["window"].toInt();
    variable_list result(8);
    if (at::GradMode::is_enabled()) {
      const variable_list in = aliases({v[0], v[1]});
      const at::Tensor out =
          composed::polynomial_mixer(in[0], in[1], order, {v[2], block, window}, {v[3], v[4]});
      return composed_gradients({out}, grads, in, 8);
    }
    static const auto op = find_op<MixerBackwardFn>("pom::mixer_backward");
    std::tie(result[0], result[1]) = op.call(grads[0], v[0], v[1], order, optional_of(v[2]), block, window,
                                             optional_of(v[3]), optional_of(v[4]));
    return result;
  }
};

class LayerFunction : public torch::autograd::Function<LayerFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS,
                            std::int64_t order, POM_MASK_ARGS) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = find_op<LayerTrainFn>("pom::mixer_layer_train");
    const auto [out, ho, se, H] = op.call(xq, xc, ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias,
                                          order, mask, block, window, cu_q, cu_k);
    ctx->save_for_backward({xq, xc, ho_weight, tensor_of(ho_bias), se_weight, tensor_of(se_bias), ag_weight,
                            tensor_of(ag_bias), tensor_of(mask), tensor_of(cu_q), tensor_of(cu_k), ho, se,
                            H});
    ctx->saved_data["order"] = order;
    ctx->saved_data["block"] = block;
    ctx->saved_data["window"] = window;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list v = ctx->get_saved_variables();
    const std::int64_t order = ctx->saved_data["order"].toInt(), block = ctx->saved_data["block"].toInt(),
                       window = ctx->saved_data["window"].toInt();
    variable_list result(14);
    if (at::GradMode::is_enabled()) {
      const variable_list in = aliases({v.begin(), v.begin() + 8});
      const LayerWeights w{in[2], in[3], in[4], in[5], in[6], in[7]};
      const at::Tensor out =
          composed::mixer_layer(in[0], in[1], w, order, {v[8], block, window}, {v[9], v[10]});
      return composed_gradients({out}, grads, in, 14);
    }
    bool need_x = false, need_w = false;
    for (std::size_t i = 0, edge = 0; i < 8; ++i)  // edges are counted over defined inputs only
      if (v[i].defined()) (i < 2 ? need_x : need_w) |= ctx->needs_input_grad(edge++);
    static const auto op = find_op<LayerBackwardFn>("pom::mixer_layer_backward");
    const auto g = op.call(grads[0], v[0], v[1], v[2], optional_of(v[3]), v[4], optional_of(v[5]), v[6],
                           optional_of(v[7]), v[11], v[12], v[13], need_x, need_w, order, optional_of(v[8]),
                           block, window, optional_of(v[9]), optional_of(v[10]));
    const variable_list all{std::get<0>(g), std::get<1>(g), std::get<2>(g), std::get<3>(g),
                            std::get<4>(g), std::get<5>(g), std::get<6>(g), std::get<7>(g)};
    for (std::size_t i = 0; i < 8; ++i)
      if (v[i].defined() && (i < 2 ? need_x : need_w)) result[i] = all[i];
    return result;
  }
};

at::Tensor mixer_autograd(const at::Tensor& ho, const at::Tensor& se, std::int64_t order, POM_MASK_ARGS) {
  refuse_functorch("mixer");
  const bool graph = at::GradMode::is_enabled() && any<wants_grad>(ho, se);
  if (any<is_dual>(ho, se) ||
      (graph && composed_only("mixer", ho, mask_of(mask, block, window), packing_of(cu_q, cu_k), order))) {
    if (concrete(ho))
      check_mixer("mixer", ho, se, order, mask_of(mask, block, window), packing_of(cu_q, cu_k));
    return composed::polynomial_mixer(ho, se, order, mask_of(mask, block, window), packing_of(cu_q, cu_k));
  }
  if (graph) return MixerFunction::apply(ho, se, order, mask, block, window, cu_q, cu_k);
  at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op = find_op<MixerFn>("pom::mixer");
  return op.call(ho, se, order, mask, block, window, cu_q, cu_k);
}

at::Tensor layer_autograd(const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order,
                          POM_MASK_ARGS) {
  refuse_functorch("mixer_layer");
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  const bool graph =
      at::GradMode::is_enabled() &&
      any<wants_grad>(xq, xc, w.ho_weight, w.ho_bias, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias);
  const bool dual =
      any<is_dual>(xq, xc, w.ho_weight, w.ho_bias, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias);
  if (dual || (graph && composed_only("mixer_layer", xq, mask_of(mask, block, window), packing_of(cu_q, cu_k),
                                      order))) {
    if (concrete(xq))
      check_layer("mixer_layer", xq, xc, w, order, mask_of(mask, block, window), packing_of(cu_q, cu_k));
    return composed::mixer_layer(xq, xc, w, order, mask_of(mask, block, window), packing_of(cu_q, cu_k));
  }
  if (graph)
    return LayerFunction::apply(xq, xc, ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias, order,
                                mask, block, window, cu_q, cu_k);
  at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op = find_op<LayerFn>("pom::mixer_layer");
  return op.call(xq, xc, ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias, order, mask, block,
                 window, cu_q, cu_k);
}

// The recurrent halves are for inference; where a gradient is wanted, the composed operations carry it.
void refuse_forced(const char* op) {
  check(path() != Path::fused, op,
        ": path: fused was asked for, but gradients of this go through the composed operations");
}

at::Tensor summary_autograd(const at::Tensor& xc, const at::Tensor& ho_weight, const OptTensor& ho_bias,
                            std::int64_t order, const OptTensor& mask) {
  refuse_functorch("mixer_summary");
  const at::Tensor b = tensor_of(ho_bias);
  if ((at::GradMode::is_enabled() && any<wants_grad>(xc, ho_weight, b)) || any<is_dual>(xc, ho_weight, b)) {
    refuse_forced("mixer_summary");
    if (concrete(xc)) check_summary(xc, ho_weight, b, order, tensor_of(mask));
    return composed::mixer_summary(xc, {ho_weight, b, {}, {}, {}, {}}, order, tensor_of(mask));
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op = find_op<SummaryFn>("pom::mixer_summary");
  return op.call(xc, ho_weight, ho_bias, order, mask);
}

at::Tensor select_autograd(const at::Tensor& xq, const at::Tensor& H, const at::Tensor& se_weight,
                           const OptTensor& se_bias, const at::Tensor& ag_weight, const OptTensor& ag_bias) {
  refuse_functorch("mixer_select");
  const LayerWeights w{{}, {}, se_weight, tensor_of(se_bias), ag_weight, tensor_of(ag_bias)};
  if ((at::GradMode::is_enabled() &&
       any<wants_grad>(xq, H, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias)) ||
      any<is_dual>(xq, H, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias)) {
    refuse_forced("mixer_select");
    if (concrete(xq)) check_select(xq, H, w);
    return composed::mixer_select(xq, H, w);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op = find_op<SelectFn>("pom::mixer_select");
  return op.call(xq, H, se_weight, se_bias, ag_weight, ag_bias);
}

std::tuple<at::Tensor, at::Tensor> scan_autograd(const at::Tensor& x, POM_WEIGHT_ARGS, std::int64_t order,
                                                 const at::Tensor& sum, const at::Tensor& count) {
  refuse_functorch("mixer_scan");
  const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
  if ((at::GradMode::is_enabled() &&
       any<wants_grad>(x, sum, w.ho_weight, w.ho_bias, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias)) ||
      any<is_dual>(x, sum, w.ho_weight, w.ho_bias, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias)) {
    refuse_forced("mixer_scan");
    if (concrete(x)) check_scan(x, w, order, sum, count);
    return composed::mixer_scan(x, w, order, sum, count);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op = find_op<ScanFn>("pom::mixer_scan");
  return op.call(x, ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias, order, sum, count);
}

// ---- autocast: tokens and weights in the lower precision, sums as they are ----

template <c10::DeviceType Device>
struct Autocast {
  static constexpr c10::DispatchKey key =
      Device == at::kCUDA ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;

  static at::Tensor lower(const at::Tensor& t) {
    if (!t.defined() || !t.is_floating_point() || t.scalar_type() == at::kDouble ||
        t.device().type() != Device)
      return t;
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(Device), t, Device);
  }
  static OptTensor lower(const OptTensor& t) { return t ? OptTensor(lower(*t)) : t; }

  static at::Tensor mixer(const at::Tensor& ho, const at::Tensor& se, std::int64_t order, POM_MASK_ARGS) {
    c10::impl::ExcludeDispatchKeyGuard guard(key);
    static const auto op = find_op<MixerFn>("pom::mixer");
    return op.call(lower(ho), lower(se), order, mask, block, window, cu_q, cu_k);
  }
  static at::Tensor layer(const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order,
                          POM_MASK_ARGS) {
    c10::impl::ExcludeDispatchKeyGuard guard(key);
    static const auto op = find_op<LayerFn>("pom::mixer_layer");
    // Tokens that are both stay the same tensor: one cast, one copy kept, and kernels that know it.
    const at::Tensor queries = lower(xq), context = xq.is_same(xc) ? queries : lower(xc);
    return op.call(queries, context, lower(ho_weight), lower(ho_bias), lower(se_weight), lower(se_bias),
                   lower(ag_weight), lower(ag_bias), order, mask, block, window, cu_q, cu_k);
  }
  static at::Tensor summary(const at::Tensor& xc, const at::Tensor& ho_weight, const OptTensor& ho_bias,
                            std::int64_t order, const OptTensor& mask) {
    c10::impl::ExcludeDispatchKeyGuard guard(key);
    static const auto op = find_op<SummaryFn>("pom::mixer_summary");
    return op.call(lower(xc), lower(ho_weight), lower(ho_bias), order, mask);
  }
  static at::Tensor select(const at::Tensor& xq, const at::Tensor& H, const at::Tensor& se_weight,
                           const OptTensor& se_bias, const at::Tensor& ag_weight, const OptTensor& ag_bias) {
    c10::impl::ExcludeDispatchKeyGuard guard(key);
    static const auto op = find_op<SelectFn>("pom::mixer_select");
    return op.call(lower(xq), H, lower(se_weight), lower(se_bias), lower(ag_weight), lower(ag_bias));
  }
  static std::tuple<at::Tensor, at::Tensor> scan(const at::Tensor& x, POM_WEIGHT_ARGS, std::int64_t order,
                                                 const at::Tensor& sum, const at::Tensor& count) {
    c10::impl::ExcludeDispatchKeyGuard guard(key);
    static const auto op = find_op<ScanFn>("pom::mixer_scan");
    return op.call(lower(x), lower(ho_weight), lower(ho_bias), lower(se_weight), lower(se_bias),
                   lower(ag_weight), lower(ag_bias), order, sum, count);
  }
  static void add(torch::Library& m) {
    m.impl("mixer", mixer);
    m.impl("mixer_layer", layer);
    m.impl("mixer_summary", summary);
    m.impl("mixer_select", select);
    m.impl("mixer_scan", scan);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(pom, Autograd, m) {
  m.impl("mixer", mixer_autograd);
  m.impl("mixer_layer", layer_autograd);
  m.impl("mixer_summary", summary_autograd);
  m.impl("mixer_select", select_autograd);
  m.impl("mixer_scan", scan_autograd);
}

TORCH_LIBRARY_IMPL(pom, AutocastCPU, m) {
  Autocast<at::kCPU>::add(m);
}
TORCH_LIBRARY_IMPL(pom, AutocastCUDA, m) {
  Autocast<at::kCUDA>::add(m);
}

}  // namespace pom::ops
