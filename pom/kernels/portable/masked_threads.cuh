// Private to the masked mixer: which thread takes what. A thread walks the rows of a piece and has V columns
// of them: of all K degrees where products along the degrees are needed, else of the kD features as they
// come.
#pragma once

#include "pom/kernels/common/powers.cuh"
#include "pom/kernels/portable/masked_cut.cuh"
#include "pom/kernels/portable/masked_parts.h"
#include "pom/kernels/portable/mixer.h"

namespace pom::kernels::masked {

// Few, since blocks then divide the columns of most widths evenly and many of them fit beside each other.
constexpr int kPieceThreads = 64;

struct Spot {
  int64_t piece, column;
  bool active;
};
template <int V, int Threads>
__device__ __forceinline__ Spot spot_of(int64_t columns) {
  const unsigned tiles = static_cast<unsigned>((columns + V * Threads - 1) / (V * Threads));
  const int64_t column = static_cast<int64_t>(blockIdx.x % tiles * Threads + threadIdx.x) * V;
  return {blockIdx.x / tiles, column, column < columns};
}
template <int V, int Threads>
bool grid_of(int64_t pieces, int64_t columns, unsigned& blocks) {
  const int64_t wanted = pieces * ((columns + V * Threads - 1) / (V * Threads));
  blocks = static_cast<unsigned>(wanted);
  return wanted <= INT32_MAX;
}

// (K, V) floats of a row of kD, D apart; or zeros without it.
template <int K, int V>
__device__ __forceinline__ void load_sums(const float* row, int64_t D, int k, float (&sums)[K][V]) {
#pragma unroll
  for (int i = 0; i < K; ++i)
#pragma unroll
    for (int v = 0; v < V; ++v) sums[i][v] = row && i < k ? row[i * D + v] : 0.0f;
}
template <int K, int V>
__device__ __forceinline__ void store_sums(float* row, int64_t D, int k, const float (&sums)[K][V]) {
#pragma unroll
  for (int i = 0; i < K; ++i)
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (i < k) row[i * D + v] = sums[i][v];
}

// ---- the template for a call ----

template <class Launch>
cudaError_t with_dtype(Dtype dtype, const Launch& launch) {
  switch (dtype) {
    case Dtype::fp32:
      return launch(float());
    case Dtype::bf16:
      return launch(__nv_bfloat16());
    case Dtype::fp16:
      return launch(__half());
    case Dtype::e4m3:
      break;
  }
  return cudaErrorInvalidValue;
}

template <int N>
using Constant = std::integral_constant<int, N>;

// launch(zero of the dtype, K, V): at most 8 bytes of 16 bits at a time and 16 of 32, and fewer columns where
// there are many degrees; one column if something is not aligned.
template <class Launch>
cudaError_t with_degrees(const Sizes& s, std::initializer_list<const void*> rows, const Launch& launch) {
  return with_dtype(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto with = [&](auto degrees) {
      constexpr int K = decltype(degrees)::value;
      constexpr int V = K <= 2 ? 4 : K <= 4 ? 2 : 1;
      bool all = s.D % V == 0;
      for (const void* row : rows) all = all && aligned(row, V * sizeof(T));
      if (all) return launch(zero, degrees, Constant<V>());
      return launch(zero, degrees, Constant<1>());
    };
    switch (s.order) {
      case 1:
        return with(Constant<1>());
      case 2:
        return with(Constant<2>());
      case 3:
        return with(Constant<3>());
      case 4:
        return with(Constant<4>());
      case 6:
        return with(Constant<6>());
      default:
        return with(Constant<kMaxMixerOrder>());
    }
  });
}

// launch(zero of the dtype, V): 16 bytes at a time, or one column.
template <class Launch>
cudaError_t with_columns(const Sizes& s, std::initializer_list<const void*> rows, const Launch& launch) {
  return with_dtype(s.dtype, [&](auto zero) {
    constexpr int V = 16 / static_cast<int>(sizeof(zero));
    bool all = s.columns() % V == 0;
    for (const void* row : rows) all = all && aligned(row, 16);
    return all ? launch(zero, Constant<V>()) : launch(zero, Constant<1>());
  });
}

}  // namespace pom::kernels::masked
