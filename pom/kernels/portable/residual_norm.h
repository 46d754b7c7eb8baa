// The passes between the products of a block while sampling: what a product left is added to the residual
// stream and the next modulated layer norm is taken of it, in one pass over memory. B sequences, N tokens,
// d width; the stream is fp32, rows are contiguous.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "pom/kernels/common/dtype.h"

namespace pom::kernels {

// x += gate y (where y is given); out = (x - mean) rstd (1 + scale) + shift (where out is given).
// In e4m3 a row is divided by row_scale = its greatest |value| / 448 (1 where the row is 0), which is
// written.
struct StreamNormParams {
  int64_t batch = 0, tokens = 0, width = 0;
  float* x = nullptr;       // (B, N, d)
  const void* y = nullptr;  // (B, N, d) of y_dtype (bf16, fp16, fp32), or null
  Dtype y_dtype = Dtype::bf16;
  const float* gate = nullptr;                     // (B, d), with y
  const float *scale = nullptr, *shift = nullptr;  // (B, d)
  int64_t stride = 0;                              // from row to row of gate, scale and shift
  float eps = 0;
  Dtype out_dtype = Dtype::bf16;  // bf16, fp16, fp32 or e4m3
  void* out = nullptr;            // (B, N, d) or null: only the sum
  float* row_scale = nullptr;     // (B, N), e4m3 only
};
cudaError_t stream_norm(const StreamNormParams& params, cudaStream_t stream);

// Rows to e4m3: out = x / scale, scale = the row's greatest |value| / 448 (1 where the row is 0).
struct QuantizeParams {
  int64_t rows = 0, width = 0;
  Dtype dtype = Dtype::bf16;  // of x: bf16, fp16 or fp32
  const void* x = nullptr;    // (rows, width)
  void* out = nullptr;        // (rows, width)
  float* scale = nullptr;     // (rows)
};
cudaError_t quantize_rows(const QuantizeParams& params, cudaStream_t stream);

// largest = max(largest, greatest |x| / 448 over all values): what a static scale is calibrated by.
struct LargestParams {
  int64_t count = 0;
  Dtype dtype = Dtype::bf16;
  const void* x = nullptr;
  float* largest = nullptr;  // one value
};
cudaError_t largest_value(const LargestParams& params, cudaStream_t stream);

}  // namespace pom::kernels
