// Derivatives, autocast and the choice of a path. First order: the fused kernels. Second order, forward mode,
// and what no kernel covers: the composed operations, which ATen differentiates.
#include "pom/ops/block/training.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pom/base/error.h"
#include "pom/ops/block/training_common.h"
#include "pom/ops/cuda/block.h"
#include "pom/ops/dispatcher/second_order.h"
#include "pom/ops/mixer.h"
#include "pom/ops/problem.h"

namespace pom::ops {
namespace {

using detail::aliases, detail::composed_gradients, detail::composed_only, detail::wants_graph;
using detail::branch_type, detail::check_branch, detail::check_linear, detail::check_rows,
    detail::check_stream, detail::NoAutocast, detail::sum_type;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- the arguments ----

void check_alike(const char* op, const char* name, const at::Tensor& t, const at::Tensor& x) {
  check(t.scalar_type() == x.scalar_type() && t.device() == x.device(), op, ": ", name, ": expected ",
        x.scalar_type(), " on ", x.device(), " like x, got ", t.scalar_type(), " on ", t.device());
}

// ---- the choice of a path ----

bool has_kernels(const at::Tensor& x, at::ScalarType branch) {
  const auto single = [](at::ScalarType t) { return t == at::kFloat || t == at::kBFloat16; };
  const bool singles = single(x.scalar_type()) && single(branch);
  if (x.is_cuda())
    return cuda::has_kernels() && (singles || (single(x.scalar_type()) && branch == at::kHalf));
  return x.is_cpu() && (singles || (x.scalar_type() == at::kDouble && branch == at::kDouble));
}

bool fused(const char* op, const at::Tensor& x, at::ScalarType branch, const variable_list& inputs) {
  if (composed_only(inputs)) return false;
  const bool covered = has_kernels(x, branch);
  check(covered || path() != Path::fused, op, ": path: fused was asked for, but there is no kernel for ",
        x.scalar_type(), " and ", branch, " on ", x.device());
  return covered;
}

// On CUDA what the fused products do not cover is composed, whatever the path: cuBLAS is no loss there.
bool fused_feed_forward(const char* op, at::ScalarType branch, const variable_list& in) {
  if (in[0].is_cuda()) return !composed_only(in) && detail::has_feed_forward_cuda(in[0], in[1]);
  return in[0].is_cpu() && fused(op, in[0], branch, in);
}

// ---- composed ----

at::Tensor composed_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, double eps,
                         at::ScalarType dtype) {
  const NoAutocast guard;
  const at::Tensor normal = at::layer_norm(x.to(scale.scalar_type()), {x.size(-1)}, {}, {}, eps);
  return (normal * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)).to(dtype);
}
at::Tensor composed_add(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate, double base) {
  const NoAutocast guard;
  const at::ScalarType sums = gate.scalar_type();
  return (x.to(sums) + y.to(sums) * (base + gate.unsqueeze(1))).to(x.scalar_type());
}

at::Tensor composed_feed_forward(const variable_list& in) {
  const NoAutocast guard;
  return at::linear(at::gelu(at::linear(in[0], in[1], in[2])), in[3], in[4]);
}

// ---- the devices ----

#define POM_ON_DEVICE(x, call, ...) ((x).is_cuda() ? call##_cuda(__VA_ARGS__) : call##_cpu(__VA_ARGS__))

detail::NormForward norm_forward(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                 double eps, at::ScalarType dtype) {
  return POM_ON_DEVICE(x, detail::modulated_norm_forward, x, scale, shift, eps, dtype);
}
detail::NormBackward norm_backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& scale,
                                   const at::Tensor& mean, const at::Tensor& rstd) {
  return POM_ON_DEVICE(x, detail::modulated_norm_backward, dout, x, scale, mean, rstd);
}
at::Tensor add_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate, double base) {
  return POM_ON_DEVICE(x, detail::gated_add_forward, x, y, gate, base);
}
detail::GateBackward add_backward(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& gate,
                                  double base) {
  return POM_ON_DEVICE(y, detail::gated_add_backward, dout, y, gate, base);
}
detail::GatedNormForward add_norm_forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                          double base, const at::Tensor& scale, const at::Tensor& shift,
                                          double eps) {
  return POM_ON_DEVICE(x, detail::gated_add_norm_forward, x, y, gate, base, scale, shift, eps);
}
detail::GatedNormBackward add_norm_backward(const at::Tensor& dsum, const at::Tensor& dout,
                                            const at::Tensor& sum, const at::Tensor& y,
                                            const at::Tensor& gate, double base, const at::Tensor& scale,
                                            const at::Tensor& mean, const at::Tensor& rstd) {
  return POM_ON_DEVICE(y, detail::gated_add_norm_backward, dsum, dout, sum, y, gate, base, scale, mean, rstd);
}
detail::FeedForward feed_forward_of(const variable_list& in, bool save) {
  const detail::FeedForwardWeights w{in[1], in[2], in[3], in[4]};
  return POM_ON_DEVICE(in[0], detail::feed_forward, in[0], w, save);
}
detail::FeedForwardBackward feed_forward_backward(const at::Tensor& dout, const variable_list& in,
                                                  const at::Tensor& before, bool need_x) {
  const detail::FeedForwardWeights w{in[1], in[2], in[3], in[4]};
  return POM_ON_DEVICE(in[0], detail::feed_forward_backward, dout, in[0], w, before, need_x);
}
#undef POM_ON_DEVICE

// ---- first derivatives ----

class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& scale,
                            const at::Tensor& shift, double eps, at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const detail::NormForward result = norm_forward(x, scale, shift, eps, dtype);
    ctx->save_for_backward({x, scale, shift, result.mean, result.rstd});
    ctx->saved_data["eps"] = eps;
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list v = ctx->get_saved_variables();
    if (at::GradMode::is_enabled()) {
      const variable_list in = aliases({v[0], v[1], v[2]});
      const at::Tensor out =
          composed_norm(in[0], in[1], in[2], ctx->saved_data["eps"].toDouble(), grads[0].scalar_type());
      return composed_gradients({out}, grads, in, 5);
    }
    const detail::NormBackward g = norm_backward(grads[0].contiguous(), v[0], v[1], v[3], v[4]);
    return {g.dx, g.dscale, g.dshift, {}, {}};
  }
};

class AddFunction : public torch::autograd::Function<AddFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y,
                            const at::Tensor& gate, double base) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({y, gate});
    ctx->saved_data["base"] = base;
    return add_forward(x, y, gate, base);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list v = ctx->get_saved_variables();
    const double base = ctx->saved_data["base"].toDouble();
    if (at::GradMode::is_enabled()) {  // x comes in as itself: its gradient is the one that came
      const variable_list in = aliases({v[0], v[1]});
      const at::Tensor out = composed_add(at::zeros_like(grads[0]), in[0], in[1], base);
      const variable_list g = composed_gradients({out}, grads, in, 2);
      return {grads[0], g[0], g[1], {}};
    }
    const at::Tensor dout = grads[0].contiguous();
    const detail::GateBackward g = add_backward(dout, v[0], v[1], base);
    return {dout, g.dy, g.dgate, {}};
  }
};

class AddNormFunction : public torch::autograd::Function<AddNormFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y,
                               const at::Tensor& gate, double base, const at::Tensor& scale,
                               const at::Tensor& shift, double eps) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const detail::GatedNormForward r = add_norm_forward(x, y, gate, base, scale, shift, eps);
    ctx->save_for_backward({x, y, gate, scale, shift, r.sum, r.mean, r.rstd});
    ctx->saved_data["base"] = base;
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return {r.sum, r.out};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list v = ctx->get_saved_variables();
    const double base = ctx->saved_data["base"].toDouble();
    if (at::GradMode::is_enabled()) return with_graph(v, base, ctx->saved_data["eps"].toDouble(), grads);
    if (!grads[1].defined()) {
      const at::Tensor dout = grads[0].contiguous();
      const detail::GateBackward g = add_backward(dout, v[1], v[2], base);
      return {dout, g.dy, g.dgate, {}, {}, {}, {}};
    }
    const at::Tensor dsum = grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    const detail::GatedNormBackward g =
        add_norm_backward(dsum, grads[1].contiguous(), v[5], v[1], v[2], base, v[3], v[6], v[7]);
    return {g.dx, g.dy, g.dgate, {}, g.dscale, g.dshift, {}};
  }

 private:
  static variable_list with_graph(const variable_list& v, double base, double eps,
                                  const variable_list& grads) {
    const variable_list in = aliases({v[0], v[1], v[2], v[3], v[4]});
    variable_list outs{composed_add(in[0], in[1], in[2], base)};
    outs.push_back(composed_norm(outs[0], in[3], in[4], eps, v[1].scalar_type()));
    variable_list some, douts;
    for (std::size_t i = 0; i < 2; ++i)
      if (grads[i].defined()) some.push_back(outs[i]), douts.push_back(grads[i]);
    const variable_list g = composed_gradients(some, douts, in, 5);
    return {g[0], g[1], g[2], {}, g[3], g[4], {}};
  }
};

class FeedForwardFunction : public torch::autograd::Function<FeedForwardFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& up,
                            const at::Tensor& up_bias, const at::Tensor& down, const at::Tensor& down_bias) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const detail::FeedForward r = feed_forward_of({x, up, up_bias, down, down_bias}, true);
    ctx->save_for_backward({x, up, up_bias, down, down_bias, r.before});
    return r.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list v = ctx->get_saved_variables();
    if (at::GradMode::is_enabled()) {
      const variable_list in = aliases({v.begin(), v.begin() + 5});
      return composed_gradients({composed_feed_forward(in)}, grads, in, 5);
    }
    const detail::FeedForwardBackward g =
        feed_forward_backward(grads[0].contiguous(), v, v[5], ctx->needs_input_grad(0));
    return {g.dx, g.up, g.up_bias, g.down, g.down_bias};
  }
};

}  // namespace

at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, double eps) {
  constexpr const char* op = "modulated_norm";
  check_stream(op, "x", x);
  check_rows(op, "scale", scale, x), check_rows(op, "shift", shift, x);
  const at::ScalarType dtype = branch_type(x), sums = sum_type(x);
  const variable_list in{x.contiguous(), scale.to(sums).contiguous(), shift.to(sums).contiguous()};
  if (!fused(op, x, dtype, in)) return composed_norm(x, in[1], in[2], eps, dtype);
  if (wants_graph(in)) return NormFunction::apply(in[0], in[1], in[2], eps, dtype);
  at::AutoDispatchBelowADInplaceOrView guard;
  return norm_forward(in[0], in[1], in[2], eps, dtype).out;
}

at::Tensor gated_add(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate, double base) {
  constexpr const char* op = "gated_add";
  check_stream(op, "x", x);
  check_branch(op, y, x), check_rows(op, "gate", gate, x);
  const variable_list in{x.contiguous(), y.contiguous(), gate.to(sum_type(x)).contiguous()};
  if (!fused(op, x, y.scalar_type(), in)) return composed_add(x, y, in[2], base);
  if (wants_graph(in)) return AddFunction::apply(in[0], in[1], in[2], base);
  at::AutoDispatchBelowADInplaceOrView guard;
  return add_forward(in[0], in[1], in[2], base);
}

std::pair<at::Tensor, at::Tensor> gated_add_norm(const at::Tensor& x, const at::Tensor& y,
                                                 const at::Tensor& gate, double base, const at::Tensor& scale,
                                                 const at::Tensor& shift, double eps) {
  constexpr const char* op = "gated_add_norm";
  check_stream(op, "x", x);
  check_branch(op, y, x);
  check_rows(op, "gate", gate, x), check_rows(op, "scale", scale, x), check_rows(op, "shift", shift, x);
  const at::ScalarType sums = sum_type(x);
  const variable_list in{x.contiguous(), y.contiguous(), gate.to(sums).contiguous(),
                         scale.to(sums).contiguous(), shift.to(sums).contiguous()};
  const bool together = branch_type(x) == y.scalar_type();
  if (!together || !fused(op, x, y.scalar_type(), in)) {
    const at::Tensor sum = gated_add(x, y, gate, base);
    return {sum, modulated_norm(sum, scale, shift, eps)};
  }
  if (wants_graph(in)) {
    const variable_list both = AddNormFunction::apply(in[0], in[1], in[2], base, in[3], in[4], eps);
    return {both[0], both[1]};
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  const detail::GatedNormForward r = add_norm_forward(in[0], in[1], in[2], base, in[3], in[4], eps);
  return {r.sum, r.out};
}

at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& up, const at::Tensor& up_bias,
                        const at::Tensor& down, const at::Tensor& down_bias) {
  constexpr const char* op = "feed_forward";
  check_stream(op, "x", x);
  check_linear(op, "up", up, up_bias, x.size(2)), check_linear(op, "down", down, down_bias, up.size(0));
  const at::ScalarType dtype = branch_type(x);
  const bool lowered = at::autocast::is_autocast_enabled(x.device().type()) && x.scalar_type() != at::kDouble;
  variable_list in{x, up, up_bias, down, down_bias};
  if (lowered)
    for (at::Tensor& t : in) t = at::autocast::cached_cast(dtype, t, x.device().type());
  const char* const names[] = {"x", "up", "up_bias", "down", "down_bias"};
  for (std::size_t i = 1; i < in.size(); ++i) check_alike(op, names[i], in[i], in[0]);
  for (at::Tensor& t : in) t = t.contiguous();
  if (!fused_feed_forward(op, dtype, in)) return composed_feed_forward(in);
  if (wants_graph(in)) return FeedForwardFunction::apply(in[0], in[1], in[2], in[3], in[4]);
  at::AutoDispatchBelowADInplaceOrView guard;
  return feed_forward_of(in, false).out;
}

}  // namespace pom::ops
