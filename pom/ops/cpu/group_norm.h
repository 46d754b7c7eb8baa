// Group norms of pictures whose pixels' channels are side by side, with SiLU in the same pass: no torch, no
// instruction set.
//
// Moments are taken over blocks of pixels, each around its own mean, and put together in fp64 and in order: a
// mean far from zero costs nothing, and threads change no bit.
#pragma once

#include "pom/ops/cpu/kernels.h"

namespace pom::ops::cpu {

constexpr std::int64_t kNormPixels = 64;  // of a block

// Of one picture.
struct GroupNormArgs {
  std::int64_t pixels = 0, channels = 0;
  const void* x = nullptr;
  void* y = nullptr;         // may be x
  float* moments = nullptr;  // [block][2][channels]: means, and sums of squared distances from them
  const float *scale = nullptr, *shift = nullptr;  // (channels)
  bool silu = true;

  std::int64_t blocks() const { return (pixels + kNormPixels - 1) / kNormPixels; }
  std::int64_t pixels_of(std::int64_t block) const {
    const std::int64_t left = pixels - block * kNormPixels;
    return left < kNormPixels ? left : kNormPixels;
  }
};

struct GroupNormKernels {
  void (*measure)(const GroupNormArgs&, std::int64_t block);
  void (*apply)(const GroupNormArgs&, std::int64_t block);  // y = x scale + shift, and SiLU of it
};

const GroupNormKernels& group_norm_table(DType dtype);  // fp64 has none

}  // namespace pom::ops::cpu
