// Private to the room: weights by name, in the dtype of a network's products.
#pragma once

#include <string>

#include "pom/models/weights.h"
#include "pom/ops/block/inference.h"

namespace pom::models {

// What has been taken is gone from the weights, and its memory with it where it was converted.
class Shelf {
 public:
  Shelf(Weights& weights, at::ScalarType dtype) : weights_(weights), dtype_(dtype) {}

  at::Tensor take(const std::string& name) {
    return weights_.extract(name).mapped().detach().to(dtype_).contiguous();
  }
  ops::Dense dense(const std::string& name) {
    at::Tensor weight = take(name + ".weight");
    return {std::move(weight), take(name + ".bias")};
  }
  ops::LayerWeights mixer(const std::string& name) {
    const ops::Dense ho = dense(name + ".ho_proj"), se = dense(name + ".se_proj"),
                     ag = dense(name + ".ag_proj");
    return {ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias};
  }

 private:
  Weights& weights_;
  at::ScalarType dtype_;
};

}  // namespace pom::models
