// The gated add and the modulated norm that follows it, in one pass over memory, with gradients: see
// modulation.h for shapes, dtypes and the order of sums. The stream (x, sum) is fp32 or bf16, the branch
// (y, out) fp32, bf16 or fp16.
#pragma once

#include "pom/kernels/portable/modulation.h"

namespace pom::kernels {

// sum = x + (y + bias) (base + gate); out = (sum - mean) rstd (1 + scale) + shift
struct GatedNormParams {
  RowSizes sizes;
  Dtype x_dtype = Dtype::fp32, y_dtype = Dtype::fp32;
  const void *x = nullptr, *y = nullptr;                            // (B, N, d)
  const float *gate = nullptr, *scale = nullptr, *shift = nullptr;  // (B, d)
  const float* bias = nullptr;                                      // (d) or null
  float base = 0, eps = 0;
  void *sum = nullptr, *out = nullptr;     // (B, N, d), of x's dtype and of y's
  float *mean = nullptr, *rstd = nullptr;  // (B, N)
};
cudaError_t gated_norm(const GatedNormParams& params, cudaStream_t stream);

struct GatedNormBackwardParams {
  RowSizes sizes;
  Dtype x_dtype = Dtype::fp32, y_dtype = Dtype::fp32;
  const void *dsum = nullptr, *dout = nullptr;    // (B, N, d), of x's dtype and of y's; dsum may be null
  const void *sum = nullptr, *y = nullptr;        // (B, N, d)
  const float *gate = nullptr, *scale = nullptr;  // (B, d)
  const float *mean = nullptr, *rstd = nullptr;   // (B, N)
  float base = 0;
  float* scratch = nullptr;                                      // gated_norm_scratch() floats
  void *dx = nullptr, *dy = nullptr;                             // (B, N, d)
  float *dgate = nullptr, *dscale = nullptr, *dshift = nullptr;  // (B, d)
  // Where `again` is given, it gets the norm's result once more, for which the shift is needed, and a bias
  // may have a gradient.
  void* again = nullptr;         // (B, N, d)
  const float* shift = nullptr;  // (B, d)
  const float* bias = nullptr;   // (d) or null
  float* dbias = nullptr;        // (d) or null, as the bias
};
int64_t gated_norm_scratch(const RowSizes& sizes, bool again);
cudaError_t gated_norm_backward(const GatedNormBackwardParams& params, cudaStream_t stream);

}  // namespace pom::kernels
