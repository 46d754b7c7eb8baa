// The noise of pom/base/noise.h made where a tensor is: the same bits as on the CPU.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "pom/base/noise.h"

namespace pom::ops::cuda {

// Standard normals shaped like x and of its dtype, from `first_position` on; nothing where x is not on CUDA.
std::optional<at::Tensor> normal_noise(const NoiseKey& key, const at::Tensor& x, std::int64_t first_position);

}  // namespace pom::ops::cuda
