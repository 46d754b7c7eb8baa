// See ATen/core/Tensor.h.
#pragma once

namespace c10 {
class Device {};
}  // namespace c10
