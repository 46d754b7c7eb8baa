// Private to the room: the noise of a batch where the batch is, the same bits on any device.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/base/noise.h"

namespace pom::train {

// Standard normals shaped like x (B, …), of its dtype and on its device, for examples `first` … of a batch.
at::Tensor normal_noise(const NoiseKey& key, const at::Tensor& x, std::int64_t first);

}  // namespace pom::train
