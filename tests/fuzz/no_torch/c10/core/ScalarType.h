// See ATen/core/Tensor.h.
#pragma once

namespace at {
enum class ScalarType : signed char;
}  // namespace at
