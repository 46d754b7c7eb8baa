// What a GPU has left.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

namespace pom::ops::cuda {

std::int64_t free_bytes(c10::Device device);  // 0 where nobody can say

}  // namespace pom::ops::cuda
