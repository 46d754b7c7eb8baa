// Private to the room: gradients that can be differentiated again, through the composed operations.
#pragma once

#include <torch/csrc/autograd/autograd.h>

namespace pom::ops::detail {

// The inputs under new names. Differentiating with respect to these gives each input's own share, also where
// two are the same tensor or one was computed from another.
inline torch::autograd::variable_list aliases(const torch::autograd::variable_list& inputs) {
  torch::autograd::variable_list result;
  for (const at::Tensor& t : inputs) result.push_back(t.defined() ? t.view_as(t) : t);
  return result;
}

// Gradients of `inputs` (those defined and wanted) of composed results, with a graph for the next derivative:
// one for each of the first `arguments` arguments of a function, of which the inputs come first.
inline torch::autograd::variable_list composed_gradients(const torch::autograd::variable_list& outs,
                                                         const torch::autograd::variable_list& douts,
                                                         const torch::autograd::variable_list& inputs,
                                                         std::size_t arguments) {
  const auto wants = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  torch::autograd::variable_list wanted, result(arguments);
  for (const at::Tensor& t : inputs)
    if (wants(t)) wanted.push_back(t);
  const torch::autograd::variable_list found = torch::autograd::grad(
      outs, wanted, douts, /*retain_graph=*/true, /*create_graph=*/true, /*allow_unused=*/true);
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (wants(inputs[i])) result[i] = found[next++];
  return result;
}

}  // namespace pom::ops::detail
