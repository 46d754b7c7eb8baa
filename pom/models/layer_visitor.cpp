#include "pom/models/layer_visitor.h"

#include <torch/csrc/autograd/custom_function.h>

namespace pom::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Visit : torch::CustomClassHolder {
  Visit(LayerVisitor& visitor, std::int64_t layer) : visitor(visitor), layer(layer) {}
  LayerVisitor& visitor;
  std::int64_t layer;
};

class Leave : public torch::autograd::Function<Leave> {
 public:
  static variable_list forward(AutogradContext* ctx, const c10::intrusive_ptr<Visit>& visit,
                               at::TensorList tensors) {
    ctx->saved_data["visit"] = c10::IValue::make_capsule(visit);
    return tensors.vec();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto visit = c10::static_intrusive_pointer_cast<Visit>(ctx->saved_data["visit"].toCapsule());
    visit->visitor.before_backward(visit->layer);
    variable_list all{at::Tensor()};
    all.insert(all.end(), grads.begin(), grads.end());
    return all;
  }
};

}  // namespace

std::vector<at::Tensor> leaving(LayerVisitor& visitor, std::int64_t layer, std::vector<at::Tensor> tensors) {
  variable_list defined;
  for (const at::Tensor& t : tensors)
    if (t.defined()) defined.push_back(t);
  const variable_list left =
      Leave::apply(c10::make_intrusive<Visit>(visitor, layer), at::TensorList(defined));
  std::size_t next = 0;
  for (at::Tensor& t : tensors)
    if (t.defined()) t = left[next++];
  return tensors;
}

}  // namespace pom::models
