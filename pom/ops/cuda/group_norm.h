// The passes between the convolutions of an autoencoder on a GPU: kernels/portable/group_norm.h with tensors.
// Activations are (N, C, H, W) or (N, C, T, H, W) in channels-last memory.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pom::ops::cuda {

// Whether the kernels are there and take x: on CUDA, channels-last, fp32, bf16 or fp16, groups that divide
// the channels.
bool takes_group_norm(const at::Tensor& x, std::int64_t groups);

// An activation and, where they were asked for, the sums that the next group norm is made of.
struct Summed {
  at::Tensor x, sums;
};

// x + bias + other (each where defined; in x's memory), and the sums of `groups` groups where that is not 0.
Summed complete_(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& other, std::int64_t groups);

// (N, 4 C, H + 1, W + 1) -> (N, C, 2 H, 2 W): the parities of an upsampling folded into its convolution, with
// its bias.
// Into `out`, which may be a part of a larger tensor: some items, or some rows of one.
Summed shuffle_parities(const at::Tensor& x, const at::Tensor& bias, std::int64_t groups,
                        const at::Tensor& out);

// Scale and shift of a norm that a latent gives, (N, C, t, h, w) channels-last, taken to x's pixels by the
// nearest; undefined: none. `split`: the first frame belongs to the latent's first, the others to the others.
struct LatentMaps {
  at::Tensor scale, shift;
  bool split = false;
};

struct NormOptions {
  std::int64_t groups = 32;
  double epsilon = 1e-6;
  bool silu = true;
};

// The group norm of x + bias (where defined), from its sums where those are given; weight, shift and bias in
// fp32. Written to `out`, channels-last as x, where that is defined.
at::Tensor group_norm(const Summed& x, const at::Tensor& bias, const at::Tensor& weight,
                      const at::Tensor& shift, const NormOptions& options, const LatentMaps& maps = {},
                      at::Tensor out = {});

}  // namespace pom::ops::cuda
