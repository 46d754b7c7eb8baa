// Copies in bf16 of fp32 weights that lie in one flat buffer, in the forms that GEMMs read: as they are,
// transposed, and in the order of context_order.h. What changes the weights (adamw.h) writes them
// while it has the new values at hand; lower_weights() makes them of weights that something else has changed.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <vector>

namespace pom::kernels {

// A matrix with copies, or a run of values without.
struct WeightPart {
  int64_t begin = 0;              // in the flat buffer
  int64_t rows = 0, columns = 0;  // columns 0: so many values as rows
  // bf16, null where not wanted
  void* plain = nullptr;       // (rows, columns)
  void* transposed = nullptr;  // (columns, rows)
  void* context = nullptr;     // (rows, columns), row context_place_of(r) of the paper's row r
  int order = 0;               // of the context
  int64_t first_tile = 0;      // see number_tiles()
};

// Numbers the tiles that the parts are worked on in; how many there are.
int64_t number_tiles(std::vector<WeightPart>& parts);

// The parts, numbered, on the device.
struct WeightParts {
  const WeightPart* parts = nullptr;
  int count = 0;
  int64_t tiles = 0;
};

struct LowerWeightsParams {
  const float* p = nullptr;  // the flat buffer
  WeightParts weights;
};
cudaError_t lower_weights(const LowerWeightsParams& params, cudaStream_t stream);

}  // namespace pom::kernels
