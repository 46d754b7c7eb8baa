// The order of rows in which training's context GEMM reads its weight: the k factors of 32 neighbouring
// features side by side. The paper's layout has factor i of feature j in row i D + j.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define POM_HOST_DEVICE __host__ __device__
#else
#define POM_HOST_DEVICE
#endif

namespace pom::kernels {

// Which row of the paper's layout stands in row r.
POM_HOST_DEVICE constexpr int64_t context_row_of(int64_t r, int order, int64_t D) {
  return r / 32 % order * D + r / (32 * order) * 32 + r % 32;
}

// And back: where row `row` of the paper's layout stands.
POM_HOST_DEVICE constexpr int64_t context_place_of(int64_t row, int order, int64_t D) {
  return row % D / 32 * (32 * order) + row / D * 32 + row % 32;
}

}  // namespace pom::kernels
