#include "pom/kernels/portable/weight_parts.cuh"

namespace pom::kernels {
namespace {

struct Read {
  const float* p;
  template <int V>
  __device__ __forceinline__ void operator()(int64_t at, float (&values)[V]) const {
    load_values<V>(p + at, values);
  }
};

__global__ void __launch_bounds__(kThreads) lower_kernel(const float* p, const WeightParts w, bool wide) {
  weight_tile(w, wide, Read{p});
}

}  // namespace

int64_t number_tiles(std::vector<WeightPart>& parts) {
  int64_t tiles = 0;
  const auto up = [](int64_t n, int64_t by) { return (n + by - 1) / by; };
  for (WeightPart& part : parts) {
    part.first_tile = tiles;
    tiles += part.columns == 0 ? up(part.rows, kTileValues)
                               : up(part.rows, kTileSide) * up(part.columns, kTileSide);
  }
  return tiles;
}

cudaError_t lower_weights(const LowerWeightsParams& params, cudaStream_t stream) {
  if (params.weights.count == 0) return cudaSuccess;
  if (!params.p || !launchable(params.weights)) return cudaErrorInvalidValue;
  lower_kernel<<<static_cast<unsigned>(params.weights.tiles), kThreads, 0, stream>>>(params.p, params.weights,
                                                                                     aligned(params.p, 16));
  return cudaGetLastError();
}

}  // namespace pom::kernels
