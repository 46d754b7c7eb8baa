// What this build and a GPU have.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

namespace pom::ops::cuda {

bool has_kernels();                           // whether this build has any
std::int64_t free_bytes(c10::Device device);  // 0 where nobody can say
std::string device_name(c10::Device device);  // "NVIDIA H200"; empty likewise

}  // namespace pom::ops::cuda
