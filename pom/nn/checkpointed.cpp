#include "pom/nn/checkpointed.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pom/base/error.h"

namespace pom::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The state of autocast for one device, and a scope in which it holds again. Casts of weights are not kept
// there: one made without a graph would be found by the pass that needs one.
struct AutocastState {
  c10::DeviceType device;
  bool enabled;
  at::ScalarType dtype;
  bool cache;

  static AutocastState of(c10::DeviceType device) {
    return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device),
            at::autocast::is_autocast_cache_enabled()};
  }
  void set() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::set_autocast_cache_enabled(cache);
  }
};

class AutocastScope {
 public:
  explicit AutocastScope(AutocastState state) : before_(AutocastState::of(state.device)) {
    state.cache = false;
    state.set();
  }
  ~AutocastScope() { before_.set(); }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState before_;
};

struct Run : torch::CustomClassHolder {
  Run(std::shared_ptr<ModulatedBlockImpl> block, ops::SplitTokens split, AutocastState autocast)
      : block(std::move(block)), split(std::move(split)), autocast(autocast) {}
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& c) const {
    const AutocastScope scope(autocast);
    return block->forward(x, c, split);
  }
  std::shared_ptr<ModulatedBlockImpl> block;
  ops::SplitTokens split;
  AutocastState autocast;
};

// The parameters are inputs too, so that their gradients go the ordinary way.
class CheckpointFunction : public torch::autograd::Function<CheckpointFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& c,
                            const c10::intrusive_ptr<Run>& run, at::TensorList parameters) {
    ctx->save_for_backward({x, c});
    ctx->saved_data["run"] = c10::IValue::make_capsule(run);
    // With a graph that nobody keeps: without one other kernels might run than in the backward pass, and the
    // values there would have other bits.
    const at::AutoGradMode graph(true);
    const auto leaf = [](const at::Tensor& t) { return t.detach().requires_grad_(t.requires_grad()); };
    return (*run)(leaf(x), leaf(c)).detach();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check(!at::GradMode::is_enabled(), "checkpointed: gradients of second order (create_graph) are not ",
          "supported; turn checkpointing off");
    const auto run = c10::static_intrusive_pointer_cast<Run>(ctx->saved_data["run"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    variable_list inputs;
    for (const at::Tensor& t : saved) inputs.push_back(t.detach().requires_grad_(t.requires_grad()));
    for (const at::Tensor& p : run->block->parameters()) inputs.push_back(p);
    const variable_list found = again(*run, inputs, grads[0]);
    variable_list result{found[0], found[1], at::Tensor()};
    result.insert(result.end(), found.begin() + 2, found.end());
    return result;
  }

 private:
  // Gradients of those inputs that want one.
  static variable_list again(const Run& run, const variable_list& inputs, const at::Tensor& dout) {
    const at::AutoGradMode graph(true);
    variable_list wanted;
    for (const at::Tensor& t : inputs)
      if (t.requires_grad()) wanted.push_back(t);
    const at::Tensor out = run(inputs[0], inputs[1]);
    const variable_list found = torch::autograd::grad({out}, wanted, {dout}, /*retain_graph=*/false,
                                                      /*create_graph=*/false, /*allow_unused=*/true);
    variable_list result;
    std::size_t next = 0;
    for (const at::Tensor& t : inputs) result.push_back(t.requires_grad() ? found[next++] : at::Tensor());
    return result;
  }
};

}  // namespace

at::Tensor checkpointed(std::shared_ptr<ModulatedBlockImpl> block, const at::Tensor& x, const at::Tensor& c,
                        const ops::SplitTokens& split) {
  if (!at::GradMode::is_enabled()) return block->forward(x, c, split);
  const variable_list parameters = block->parameters();
  const auto run = c10::make_intrusive<Run>(std::move(block), split, AutocastState::of(x.device().type()));
  return CheckpointFunction::apply(x, c, run, at::TensorList(parameters));
}

}  // namespace pom::nn
