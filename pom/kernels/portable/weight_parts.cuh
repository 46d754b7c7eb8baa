// A block takes a tile of one part: 64 x 64 values of a matrix, whose copies it writes, or a run of as many
// values. The transposed copy goes through shared memory, so that it is written in rows too.
#pragma once

#include "pom/kernels/common/columns.cuh"
#include "pom/kernels/common/context_order.h"
#include "pom/kernels/portable/weight_copies.h"

namespace pom::kernels {

constexpr int kTileSide = 64, kTileValues = kTileSide * kTileSide;

using SharedTile = uint16_t[kTileSide][kTileSide + 2];

__device__ __forceinline__ WeightPart part_of(const WeightParts& w, int64_t tile) {
  int low = 0, high = w.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (w.parts[middle].first_tile <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  return w.parts[low];
}

// ---- the copies of V values of a row ----

template <int V>
__device__ __forceinline__ void write_copies(const WeightPart& w, int64_t row, int64_t column,
                                             const float (&values)[V], uint16_t* shared) {
  using T = __nv_bfloat16;
  const Word<T, V> word = pack<T, V>(values);
  if (w.plain) store<V>(static_cast<T*>(w.plain) + row * w.columns + column, word);
  if (w.context) {
    const int64_t to = context_place_of(row, w.order, w.rows / w.order);
    store<V>(static_cast<T*>(w.context) + to * w.columns + column, word);
  }
  if (!w.transposed) return;
  uint16_t stored[V];
  memcpy(stored, &word, sizeof word);
#pragma unroll
  for (int v = 0; v < V; ++v) shared[v] = stored[v];
}

__device__ __forceinline__ void write_transposed(const WeightPart& w, int64_t row, int64_t column,
                                                 const SharedTile& tile) {
  uint16_t* to = static_cast<uint16_t*>(w.transposed);
  const int pair = 2 * (threadIdx.x % 32);
  const bool together = w.rows % 2 == 0 && reinterpret_cast<uintptr_t>(to) % 4 == 0;
  for (int i = threadIdx.x / 32; i < kTileSide; i += kThreads / 32) {
    if (column + i >= w.columns || row + pair >= w.rows) continue;
    uint16_t* place = to + (column + i) * w.rows + row + pair;
    if (together) {
      *reinterpret_cast<uint32_t*>(place) = tile[pair][i] | static_cast<uint32_t>(tile[pair + 1][i]) << 16;
    } else {
      place[0] = tile[pair][i];
      if (row + pair + 1 < w.rows) place[1] = tile[pair + 1][i];
    }
  }
}

// ---- tiles ----

// values(at, v): V values from place `at` of the flat buffer on, after whatever is done to them.
template <int V, class Values>
__device__ __forceinline__ void square_tile(const WeightPart& w, int64_t tile, const Values& values,
                                            SharedTile& shared) {
  constexpr int lanes = kTileSide / V;
  const int64_t across = (w.columns + kTileSide - 1) / kTileSide;
  const int64_t row = tile / across * kTileSide, column = tile % across * kTileSide;
  const int c = threadIdx.x % lanes * V;
  for (int r = threadIdx.x / lanes; r < kTileSide; r += kThreads / lanes) {
    if (row + r >= w.rows || column + c >= w.columns) continue;
    float v[V];
    values(w.begin + (row + r) * w.columns + column + c, v);
    write_copies<V>(w, row + r, column + c, v, &shared[r][c]);
  }
  if (!w.transposed) return;
  __syncthreads();
  write_transposed(w, row, column, shared);
}

template <int V, class Values>
__device__ __forceinline__ void flat_tile(const WeightPart& w, int64_t tile, const Values& values) {
  const int64_t first = tile * kTileValues, end = min(w.rows, first + kTileValues);
  const int64_t whole = first + (end - first) / V * V;
  for (int64_t at = first + threadIdx.x * V; at < whole; at += kThreads * V) {
    float v[V];
    values(w.begin + at, v);
  }
  if (whole + threadIdx.x < end) {
    float v[1];
    values(w.begin + whole + threadIdx.x, v);
  }
}

// One block for each tile. `wide`: the buffers are aligned to 16 bytes.
template <class Values>
__device__ __forceinline__ void weight_tile(const WeightParts& weights, bool wide, const Values& values) {
  __shared__ SharedTile shared;
  const WeightPart w = part_of(weights, blockIdx.x);
  const int64_t tile = blockIdx.x - w.first_tile;
  const bool fours = wide && w.begin % 4 == 0;
  if (w.columns == 0)
    fours ? flat_tile<4>(w, tile, values) : flat_tile<1>(w, tile, values);
  else if (fours && w.columns % 4 == 0)
    square_tile<4>(w, tile, values, shared);
  else
    square_tile<1>(w, tile, values, shared);
}

inline bool launchable(const WeightParts& w) {
  return w.parts != nullptr && w.count > 0 && w.tiles > 0 && w.tiles <= INT32_MAX;
}

}  // namespace pom::kernels
