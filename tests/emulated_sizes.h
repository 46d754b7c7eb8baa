// Sizes of GPU cases: an emulated GPU (tests/emulated) takes thousands of times as long, so where a size is
// large only because a GPU is fast, it is smaller there. The kinds of cases are the same.
#pragma once

#include <algorithm>
#include <cstdint>

#include "pom/ops/cuda/device.h"

namespace pom {

inline std::int64_t smaller(std::int64_t size, std::int64_t emulated_size) {
  static const bool emulated =
      ops::cuda::device_name(c10::Device(c10::kCUDA, 0)).find("emulated") != std::string::npos;
  return emulated ? std::min(size, emulated_size) : size;
}

}  // namespace pom
