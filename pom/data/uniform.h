// Private to the room: what a uniform number u in [0, 1) stands for in a drawing or a clip.
#pragma once

#include <cstdint>

namespace pom::data {

// One of n, each as often, from the 24 bits of a uniform number.
inline std::int64_t one_of(std::int64_t n, float u) {
  return (static_cast<std::int64_t>(u * 0x1p24f) * n) >> 24;
}

inline float between(float low, float high, float u) {
  return low + (high - low) * u;
}

}  // namespace pom::data
