// Someone who is told before the weights of a layer are used: in the forward pass, and again in the backward
// pass, where all of the layer after it is done by then. At other times they need not be there.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::models {

class LayerVisitor {
 public:
  virtual ~LayerVisitor() = default;
  virtual void before_forward(std::int64_t layer) = 0;
  virtual void before_backward(std::int64_t layer) = 0;
};

// What a layer gives, unchanged: the backward pass tells the visitor, who lives until then, before it reaches
// the layer. Undefined tensors are left out of it.
std::vector<at::Tensor> leaving(LayerVisitor& visitor, std::int64_t layer, std::vector<at::Tensor> tensors);

}  // namespace pom::models
