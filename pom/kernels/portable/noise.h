// The noise of pom/base/noise.h made on the GPU: the same bits, from the same arithmetic.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "pom/base/noise.h"

namespace pom::kernels {

// out[i·stride + j] = the value at (seed + i, purpose, step, first_position + j) for i < pictures, j < count:
// picture i of a run has the run's seed plus i.
struct NoiseParams {
  float* out = nullptr;  // on the device
  int64_t count = 0;     // values of one picture
  int64_t pictures = 1;
  int64_t stride = 0;  // floats from one picture to the next; 0: count, that is one after the other
  NoiseKey key;
  int64_t first_position = 0;
};

// Start on the stream and return; cudaErrorInvalidValue where a size is negative or pictures would overlap.
cudaError_t fill_normal(const NoiseParams& params, cudaStream_t stream);
cudaError_t fill_uniform(const NoiseParams& params, cudaStream_t stream);

}  // namespace pom::kernels
