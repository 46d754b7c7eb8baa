// Drawings that are spoilt a little, for a scale: how much a score changes by what an eye hardly sees, and
// what it is blind to.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::cli::experiment {

struct Dose {
  std::string name;
  // Pictures (N, 3, H, W) or clips (N, 3, F, H, W), uint8, and the same spoilt.
  at::Tensor (*spoilt)(const at::Tensor& pictures);
};

const std::vector<Dose>& doses();

}  // namespace pom::cli::experiment
