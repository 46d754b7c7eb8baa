// All matrices of a block as one function of autograd: a kernel for the forward pass, two for the backward.
#include "pom/kernels/portable/conditions.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pom/ops/block/training_common.h"
#include "pom/ops/cuda/block.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/dispatcher/second_order.h"

namespace pom::ops::detail {
namespace {

using torch::autograd::AutogradContext;

const float* read(const at::Tensor& t) {
  return t.const_data_ptr<float>();
}

// Sizes and what the forward pass reads. `weights` are weight and bias of each matrix.
kernels::ConditionParams params_of(const at::Tensor& s, at::TensorList weights, std::int64_t batch,
                                   std::int64_t width) {
  kernels::ConditionParams p;
  p.batch = batch, p.inputs = s.size(1), p.width = width, p.s = read(s);
  p.matrices = static_cast<int>(weights.size() / 2);
  for (std::size_t i = 0; 2 * i < weights.size() && i < kernels::kMaxConditionMatrices; ++i)
    p.each[i].outputs = weights[2 * i].size(0), p.each[i].w = read(weights[2 * i]),
    p.each[i].bias = read(weights[2 * i + 1]);
  return p;
}

class ConditionFunction : public torch::autograd::Function<ConditionFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& s, std::int64_t batch,
                               std::int64_t width, at::TensorList weights) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const OnDevice device(s);
    kernels::ConditionParams p = params_of(s, weights, batch, width);
    variable_list out;
    for (std::int64_t part = 0; part < p.outputs() / width; ++part) {
      out.push_back(at::empty({batch, width}, s.options()));
      p.out[part] = out.back().mutable_data_ptr<float>();
    }
    check_launch("conditions", kernels::condition(p, device.stream()));
    variable_list saved{s};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["batch"] = batch, ctx->saved_data["width"] = width;
    ctx->set_materialize_grads(false);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::int64_t batch = ctx->saved_data["batch"].toInt(), width = ctx->saved_data["width"].toInt();
    if (at::GradMode::is_enabled()) return with_graph(saved, batch, width, grads);
    const at::Tensor& s = saved[0];
    const at::TensorList weights = at::TensorList(saved).slice(1);
    const OnDevice device(s);
    kernels::ConditionParams p = params_of(s, weights, batch, width);
    variable_list dense, result{s.size(0) == batch ? at::empty_like(s) : at::zeros_like(s), {}, {}};
    for (std::size_t i = 0; i < grads.size(); ++i) {
      dense.push_back(grads[i].defined() ? grads[i].contiguous() : at::Tensor());
      p.dout[i] = dense[i].defined() ? read(dense[i]) : nullptr;
    }
    for (std::size_t i = 0; 2 * i < weights.size(); ++i) {
      const at::Tensor dw = at::empty_like(weights[2 * i]), dbias = at::empty_like(weights[2 * i + 1]);
      p.each[i].dw = dw.mutable_data_ptr<float>(), p.each[i].dbias = dbias.mutable_data_ptr<float>();
      result.push_back(dw), result.push_back(dbias);
    }
    const at::Tensor scratch = at::empty({batch, kernels::condition_slots(p), s.size(1)}, s.options());
    p.scratch = scratch.mutable_data_ptr<float>(), p.ds = result[0].mutable_data_ptr<float>();
    check_launch("conditions", kernels::condition_backward(p, device.stream()));
    return result;
  }

 private:
  static constexpr std::size_t kOthers = 2;  // arguments that are no tensors

  static variable_list with_graph(const variable_list& saved, std::int64_t batch, std::int64_t width,
                                  const variable_list& grads) {
    const variable_list in = aliases(saved);
    const PathGuard composed(Path::composed);
    const NoAutocast no_autocast;  // as the forward pass
    std::vector<ConditionMatrix> matrices;
    for (std::size_t i = 1; i < in.size(); i += 2)
      matrices.push_back({in[i], in[i + 1], in[i].size(0) / width});
    const at::Tensor stream = at::empty({batch, 0, width}, in[0].options());
    const std::vector<at::Tensor> made = conditions(in[0], matrices, stream);
    variable_list outs, douts;
    for (std::size_t i = 0; i < grads.size(); ++i)
      if (grads[i].defined()) outs.push_back(made[i]), douts.push_back(grads[i]);
    if (outs.empty()) return variable_list(in.size() + kOthers);
    variable_list g = composed_gradients(outs, douts, in, in.size());
    g.insert(g.begin() + 1, kOthers, at::Tensor());
    return g;
  }
};

}  // namespace

std::optional<std::vector<at::Tensor>> conditions_cuda(const at::Tensor& s,
                                                       const std::vector<ConditionMatrix>& matrices,
                                                       const at::Tensor& stream) {
  const auto fits = [&](const at::Tensor& t, std::int64_t dim) {
    return t.defined() && t.dim() == dim && t.device() == s.device() && t.scalar_type() == at::kFloat &&
           t.is_contiguous();
  };
  if (!s.is_cuda() || !fits(s, 2) || matrices.empty() || stream.scalar_type() == at::kDouble)
    return std::nullopt;
  variable_list weights;
  const std::int64_t batch = stream.size(0), width = stream.size(2);
  for (const ConditionMatrix& m : matrices) {
    if (!fits(m.weight, 2) || !fits(m.bias, 1) || m.weight.size(1) != s.size(1) ||
        m.weight.size(0) != m.parts * width || m.bias.size(0) != m.weight.size(0))
      return std::nullopt;
    weights.push_back(m.weight), weights.push_back(m.bias);
  }
  variable_list there = weights;
  there.push_back(s);
  if (composed_only(there) || !wants_graph(there) || batch > s.size(0)) return std::nullopt;
  if (!kernels::condition_supported(params_of(s, weights, batch, width))) return std::nullopt;
  return ConditionFunction::apply(s, batch, width, at::TensorList(weights));
}

}  // namespace pom::ops::detail
