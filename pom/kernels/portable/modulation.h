// The parts of a block around its products: the modulated layer norm and the gated add, with gradients, one
// pass over memory each. B pictures, N tokens, d width; tensors are contiguous, arithmetic is fp32, sums over
// tokens have a fixed order. The stream (x, and what is added to it) is fp32 or bf16, a branch (out of the
// norm, y of the add) fp32, bf16 or fp16; sums, scales and gates are fp32.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "pom/kernels/common/dtype.h"

namespace pom::kernels {

constexpr int64_t kMaxNormWidth = 4096;  // a block holds a row in registers

struct RowSizes {
  int64_t batch = 0, tokens = 0, width = 0;
};

// Parts in which sums over tokens are first taken: a scratch is (B, parts, d) floats, not needed where 1.
int norm_parts(const RowSizes& sizes);
int gate_parts(const RowSizes& sizes);

// (rows, width) -> (width): the sum over rows, in a fixed order.
struct RowSumParams {
  int64_t rows = 0, width = 0;
  const float* in = nullptr;
  float* out = nullptr;
};
cudaError_t sum_rows(const RowSumParams& params, cudaStream_t stream);

// out = (x - mean) rstd (1 + scale) + shift
struct NormParams {
  RowSizes sizes;
  Dtype x_dtype = Dtype::fp32, out_dtype = Dtype::fp32;
  const void* x = nullptr;                         // (B, N, d)
  const float *scale = nullptr, *shift = nullptr;  // (B, d)
  float eps = 0;
  void* out = nullptr;                     // (B, N, d)
  float *mean = nullptr, *rstd = nullptr;  // (B, N)
};
cudaError_t modulated_norm(const NormParams& params, cudaStream_t stream);

struct NormBackwardParams {
  RowSizes sizes;
  Dtype x_dtype = Dtype::fp32, dout_dtype = Dtype::fp32;
  const void *dout = nullptr, *x = nullptr;      // (B, N, d)
  const float* scale = nullptr;                  // (B, d)
  const float *mean = nullptr, *rstd = nullptr;  // (B, N)
  float* scratch = nullptr;                      // (2, B, norm_parts, d)
  void* dx = nullptr;                            // (B, N, d), of x's dtype
  float *dscale = nullptr, *dshift = nullptr;    // (B, d)
};
cudaError_t modulated_norm_backward(const NormBackwardParams& params, cudaStream_t stream);

// out = x + y (base + gate)
struct GatedAddParams {
  RowSizes sizes;
  Dtype x_dtype = Dtype::fp32, y_dtype = Dtype::fp32;
  const void *x = nullptr, *y = nullptr;  // (B, N, d)
  const float* gate = nullptr;            // (B, d)
  float base = 0;
  void* out = nullptr;  // (B, N, d), of x's dtype
};
cudaError_t gated_add(const GatedAddParams& params, cudaStream_t stream);

// dy and dgate; the gradient of x is dout itself.
struct GatedAddBackwardParams {
  RowSizes sizes;
  Dtype dout_dtype = Dtype::fp32, y_dtype = Dtype::fp32;
  const void *dout = nullptr, *y = nullptr;  // (B, N, d)
  const float* gate = nullptr;               // (B, d)
  float base = 0;
  float* scratch = nullptr;  // (B, gate_parts, d)
  void* dy = nullptr;        // (B, N, d), of y's dtype
  float* dgate = nullptr;    // (B, d)
};
cudaError_t gated_add_backward(const GatedAddBackwardParams& params, cudaStream_t stream);

}  // namespace pom::kernels
