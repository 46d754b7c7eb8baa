#include "pom/ops/block/lowered_linear.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pom/ops/block/training_common.h"
#include "pom/ops/dispatcher/second_order.h"
#include "pom/ops/weight_copies.h"

namespace pom::ops {
namespace {

using detail::NoAutocast;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

// aᵀ b, in fp32.
at::Tensor summed_in_fp32(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cuda()) return at::mm(a.t(), b, at::kFloat);
  return at::mm(a.t().to(at::kFloat), b.to(at::kFloat));
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& copy) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const NoAutocast no_autocast;
    ctx->save_for_backward({x, weight, bias.value_or(at::Tensor()), copy});
    std::optional<at::Tensor> b;
    if (bias) b = bias->to(copy.scalar_type());
    return at::linear(x, copy, b);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list v = ctx->get_saved_variables();
    const at::Tensor &x = v[0], &bias = v[2], &copy = v[3];
    if (at::GradMode::is_enabled()) return with_graph(v, grads);
    const NoAutocast no_autocast;
    const at::Tensor dout = rows(grads[0]);
    variable_list result(4);
    if (ctx->needs_input_grad(0)) result[0] = at::mm(dout, copy).view(x.sizes());
    if (v[1].requires_grad()) result[1] = summed_in_fp32(dout, rows(x));
    if (bias.defined() && bias.requires_grad()) result[2] = at::sum(dout, 0, /*keepdim=*/false, at::kFloat);
    return result;
  }

 private:
  static variable_list with_graph(const variable_list& v, const variable_list& grads) {
    const NoAutocast no_autocast;
    const bool has_bias = v[2].defined();
    variable_list in{v[0], v[1]};
    if (has_bias) in.push_back(v[2]);
    in = detail::aliases(in);
    const at::ScalarType dtype = v[3].scalar_type();
    std::optional<at::Tensor> bias;
    if (has_bias) bias = in[2].to(dtype);
    const at::Tensor out = at::linear(in[0], in[1].to(dtype), bias);
    const variable_list g = detail::composed_gradients({out}, grads, in, in.size());
    return {g[0], g[1], has_bias ? g[2] : at::Tensor(), {}};
  }
};

}  // namespace

at::Tensor lowered_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const c10::DeviceType device = x.device().type();
  variable_list there{x, weight};
  if (bias.defined()) there.push_back(bias);
  const std::optional<at::Tensor> b = bias.defined() ? std::optional(bias) : std::nullopt;
  if (!at::autocast::is_autocast_enabled(device) || x.scalar_type() == at::kDouble ||
      detail::composed_only(there) || !detail::wants_graph(there))
    return at::linear(x, weight, b);
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  const at::Tensor copy = WeightCopies::find(weight, dtype, CopyForm::plain);
  if (!copy.defined()) return at::linear(x, weight, b);
  return LinearFunction::apply(x.to(dtype), weight, b, copy);
}

}  // namespace pom::ops
