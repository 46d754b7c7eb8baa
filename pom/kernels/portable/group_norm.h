// The passes between the convolutions of an autoencoder, over channels-last activations (N, P, C): batch,
// pixels (of a clip: of all its frames), channels. What a convolution left is completed (bias, residual, the
// four parities of a folded upsampling), and on the way the sums are taken that the next group norm needs;
// then the norm is applied with SiLU. Sums are fp32 within a part of the pixels, in fp64 over the parts, in
// an order that depends on P and C alone.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "pom/kernels/common/dtype.h"

namespace pom::kernels {

struct PixelSizes {
  int64_t batch = 0, pixels = 0, channels = 0, groups = 1;
};

// What these kernels take: channels in whole words of 16 bytes, up to 256 of those, groups that divide them.
bool fits_group_norm(const PixelSizes& sizes, Dtype dtype);

// Parts of the pixels whose sums are taken apart: sums are (N, parts, groups, 2) floats, x and x squared.
int group_norm_parts(const PixelSizes& sizes, Dtype dtype);

// out = x + bias + other, and the sums of that; bias, other, out and sums each where given.
struct CompleteParams {
  PixelSizes sizes;
  Dtype dtype = Dtype::bf16;
  const void *x = nullptr, *other = nullptr;  // (N, P, C)
  const float* bias = nullptr;                // (C)
  void* out = nullptr;                        // (N, P, C); may be x
  float* sums = nullptr;
};
cudaError_t complete(const CompleteParams& params, cudaStream_t stream);

// The same of an upsampling folded into its convolution: x is (N, H + 1, W + 1, 4 C), out (N, 2 H, 2 W, C),
// whose pixel (2 i + r, 2 j + s) is pixel (i + r, j + s) of parity 2 r + s. P = 4 H W.
struct ShuffleParams {
  CompleteParams complete;  // without `other`
  int64_t height = 0, width = 0;
};
cudaError_t shuffle_parities(const ShuffleParams& params, cudaStream_t stream);

// scale_shift (N, C, 2): weight / deviation, and shift - (mean - bias) weight / deviation, so that the norm
// of x + bias is x scale + shift.
struct NormFactorsParams {
  PixelSizes sizes;
  int parts = 1;
  const float* sums = nullptr;
  const float *weight = nullptr, *shift = nullptr;  // (C)
  const float* bias = nullptr;                      // (C) that x lacks; or null
  float epsilon = 0;
  float* scale_shift = nullptr;
};
cudaError_t norm_factors(const NormFactorsParams& params, cudaStream_t stream);

// Where a clip's pixels find the latent's: P = frames * height * width of x, maps (N, latent frames, latent
// height, latent width, C). `split`: the first frame belongs to the first one, the others to the others.
struct NearestMaps {
  const void *scale = nullptr, *shift = nullptr;  // of x's dtype; null: none
  int64_t frames = 1, height = 1, width = 1;
  int64_t latent_frames = 1, latent_height = 1, latent_width = 1;
  bool split = false;
};

// out = activation((x scale + shift) maps.scale + maps.shift), SiLU or none.
struct ApplyNormParams {
  PixelSizes sizes;
  Dtype dtype = Dtype::bf16;
  const void* x = nullptr;             // (N, P, C)
  const float* scale_shift = nullptr;  // (N, C, 2)
  NearestMaps maps;
  bool silu = true;
  void* out = nullptr;
};
cudaError_t apply_norm(const ApplyNormParams& params, cudaStream_t stream);

}  // namespace pom::kernels
