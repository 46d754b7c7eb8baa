// 3x3 convolutions with zeros around, and the same after doubling every pixel, on a CPU: with 4/9 and 1/4 of
// the multiply-adds, by Winograd's F(2x2, 3x3). Sums are in fp32, whatever x is stored in.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pom::ops {

struct WinogradWeights {
  at::Tensor packed;  // fp32, as the kernels of this processor read it
  at::Tensor bias;    // (out) in fp32, or undefined
  std::int64_t in = 0, out = 0;
  bool upsampled = false;
};

inline constexpr std::int64_t winograd_channels = 32;  // those of both sides are multiples of it

// Whether the kernels take weights (out, in, 3, 3): on a CPU, not fp64, with such channels.
bool takes_winograd(const at::Tensor& weight);

WinogradWeights pack_winograd(const at::Tensor& weight, const at::Tensor& bias, bool upsampled = false);

// Scratch of all threads while it runs, which the library keeps for the next call.
std::int64_t winograd_scratch(std::int64_t in, std::int64_t out);

// x (B, in, H, W), channels-last -> (B, out, H, W), twice the sides where it is upsampled. `other`, where it
// is defined, is added; it is of the result's shape and channels-last as well. May write into `other` where
// `in_place`. Without gradients.
at::Tensor winograd(const at::Tensor& x, const WinogradWeights& weights, const at::Tensor& other = {},
                    bool in_place = false);

}  // namespace pom::ops
