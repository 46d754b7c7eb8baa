// Group norms with SiLU on a CPU, in one pass over the picture after one that measures it. Activations are
// (B, C, H, W) in channels-last memory; fp32, bf16 or fp16, with sums and factors in fp32 and fp64.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pom::ops {

bool takes_group_norm(const at::Tensor& x);  // on a CPU, channels-last, of one of the dtypes

struct GroupNormOptions {
  std::int64_t groups = 32;
  double epsilon = 1e-6;
  bool silu = true;
};

// Sums of x's values and of their squared distances from the mean, as (B, C) in fp64 each: mean and sum over
// the pixels of a channel.
struct ChannelMoments {
  at::Tensor means, squares;
};
ChannelMoments channel_moments(const at::Tensor& x);

// A group norm with biased variance. In place it writes into x.
at::Tensor group_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const GroupNormOptions& options, bool in_place = false);

// silu(x scale + shift) with factors (B, C) of any shape that has as many values; without SiLU where asked.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, bool silu = true,
                  bool in_place = false);

}  // namespace pom::ops
