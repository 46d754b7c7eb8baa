// Bandwidth alone counts, and for small networks the number of launches. A block takes 64 x 64 values of a
// matrix; what is transposed goes through shared memory.
#include <algorithm>

#include "pom/kernels/portable/muon.h"
#include "pom/kernels/portable/weight_parts.cuh"

namespace pom::kernels {
namespace {

using Half = __nv_bfloat16;

__device__ __forceinline__ int matrix_of(const MuonTable& t, int64_t tile) {
  int low = 0, high = t.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (t.matrices[middle].first_tile <= tile)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

// The tile of this block.
struct Square {
  int64_t row, column;
  __device__ explicit Square(const MuonMatrix& w) {
    const int64_t across = (w.columns + kTileSide - 1) / kTileSide, tile = blockIdx.x - w.first_tile;
    row = tile / across * kTileSide, column = tile % across * kTileSide;
  }
};

// visit(r, c): V values from row r, column c of the tile on.
template <int V, class Visit>
__device__ __forceinline__ void over(const MuonMatrix& w, const Square& at, const Visit& visit) {
  constexpr int lanes = kTileSide / V;
  const int c = threadIdx.x % lanes * V;
  for (int r = threadIdx.x / lanes; r < kTileSide; r += kThreads / lanes)
    if (at.row + r < w.rows && at.column + c < w.columns) visit(r, c);
}

// In the order of lanes and warps; the result is the first thread's.
__device__ __forceinline__ float block_sum(float sum) {
  __shared__ float warps[kThreads / 32];
#pragma unroll
  for (int away = 16; away > 0; away /= 2) sum += __shfl_xor_sync(~0u, sum, away);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) sum += warps[i];
  return sum;
}

// ---- before the products ----

struct Directions {
  MuonTable table;
  const float *g, *scale;
  float* m;
  float momentum, grow, least_norm;
  float *partial, *inverse;
  Half* x;
};

// u of V values, from the new m.
template <int V>
__device__ __forceinline__ void direction(const Directions& a, float scale, const float (&g)[V],
                                          const float (&m)[V], float (&u)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) u[i] = fmaf(a.momentum, m[i], a.grow * (g[i] * scale));
}

template <int V>
__device__ __forceinline__ float momentum_tile(const Directions& a, const MuonMatrix& w) {
  const float scale = *a.scale;
  const Square at(w);
  float sum = 0;
  over<V>(w, at, [&](int r, int c) {
    const int64_t inside = (at.row + r) * w.columns + at.column + c;
    float g[V], m[V], u[V];
    load_values<V>(a.g + w.g + inside, g);
    load_values<V>(a.m + w.own + inside, m);
#pragma unroll
    for (int i = 0; i < V; ++i) m[i] = fmaf(a.momentum, m[i], a.grow * (g[i] * scale));
    store_values<V>(a.m + w.own + inside, m);
    direction<V>(a, scale, g, m, u);
#pragma unroll
    for (int i = 0; i < V; ++i) sum = fmaf(u[i], u[i], sum);
  });
  return sum;
}

// Of sizes and places alone: that buffers begin at 16 bytes is `wide`.
__device__ __forceinline__ bool in_fours(const MuonMatrix& w, bool wide) {
  return wide && (w.p | w.g | w.own | w.x | w.columns) % 4 == 0;
}

__global__ void __launch_bounds__(kThreads) momentum_kernel(const Directions a, bool wide) {
  const MuonMatrix w = a.table.matrices[matrix_of(a.table, blockIdx.x)];
  const float sum = block_sum(in_fours(w, wide) ? momentum_tile<4>(a, w) : momentum_tile<1>(a, w));
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) norms_kernel(const Directions a) {
  const int64_t first = a.table.matrices[blockIdx.x].first_tile;
  const int64_t end =
      blockIdx.x + 1 < a.table.count ? a.table.matrices[blockIdx.x + 1].first_tile : a.table.tiles;
  float sum = 0;
  for (int64_t i = first + threadIdx.x; i < end; i += kThreads) sum += a.partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) a.inverse[blockIdx.x] = 1 / fmaxf(sqrtf(sum), a.least_norm);
}

template <int V>
__device__ __forceinline__ void direction_tile(const Directions& a, const MuonMatrix& w, float inverse,
                                               SharedTile& shared) {
  const float scale = *a.scale;
  const Square at(w);
  const bool tall = w.rows > w.columns;
  over<V>(w, at, [&](int r, int c) {
    const int64_t inside = (at.row + r) * w.columns + at.column + c;
    float g[V], m[V], u[V];
    load_values<V>(a.g + w.g + inside, g);
    load_values<V>(a.m + w.own + inside, m);
    direction<V>(a, scale, g, m, u);
#pragma unroll
    for (int i = 0; i < V; ++i) u[i] *= inverse;
    const Word<Half, V> word = pack<Half, V>(u);
    if (!tall) return store<V>(a.x + w.x + inside, word);
    uint16_t stored[V];
    memcpy(stored, &word, sizeof word);
#pragma unroll
    for (int i = 0; i < V; ++i) shared[r][c + i] = stored[i];
  });
  if (!tall) return;
  __syncthreads();
  WeightPart to;
  to.rows = w.rows, to.columns = w.columns, to.transposed = a.x + w.x;
  write_transposed(to, at.row, at.column, shared);
}

__global__ void __launch_bounds__(kThreads) direction_kernel(const Directions a, bool wide) {
  __shared__ SharedTile shared;
  const int which = matrix_of(a.table, blockIdx.x);
  const MuonMatrix w = a.table.matrices[which];
  const float inverse = a.inverse[which];
  in_fours(w, wide) ? direction_tile<4>(a, w, inverse, shared) : direction_tile<1>(a, w, inverse, shared);
}

// ---- between the products ----

struct Polynomial {
  const MuonGrams* grams;
  int count;
  int64_t values;
  const Half* gram;
  Half* squares;
  float a, b, c;
};

template <int V>
__global__ void __launch_bounds__(kThreads) polynomial_kernel(const Polynomial p) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (at >= p.values) return;
  int low = 0, high = p.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.grams[middle].begin <= at)
      low = middle;
    else
      high = middle - 1;
  }
  const int64_t n = p.grams[low].n, place = (at - p.grams[low].begin) % (n * n);
  const int64_t diagonal = place / n - place % n;  // how far on in these V, if in them
  float gram[V], square[V];
  load_values<V>(p.gram + at, gram);
  load_values<V>(p.squares + at, square);
#pragma unroll
  for (int i = 0; i < V; ++i) square[i] = fmaf(p.b, gram[i], p.c * square[i]) + (i == diagonal ? p.a : 0.0f);
  store_values<V>(p.squares + at, square);
}

// ---- after the products ----

struct Update {
  MuonTable table;
  float *p, *average;
  const Half* x;
  const float* numbers;
};

// x of V values from row r, column c of the tile on; `across` has the tile where x is transposed.
template <int V>
__device__ __forceinline__ void found(const Update& a, const MuonMatrix& w, const Square& at, int r, int c,
                                      const SharedTile& across, float (&x)[V]) {
  if (w.rows <= w.columns) return load_values<V>(a.x + w.x + (at.row + r) * w.columns + at.column + c, x);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = __uint_as_float(static_cast<uint32_t>(across[c + i][r]) << 16);
}

// Rows of x are columns here.
__device__ __forceinline__ void read_across(const Update& a, const MuonMatrix& w, const Square& at,
                                            SharedTile& across) {
  const uint16_t* x = reinterpret_cast<const uint16_t*>(a.x + w.x);
  for (int i = threadIdx.x; i < kTileValues; i += kThreads) {
    const int c = i / kTileSide, r = i % kTileSide;
    if (at.row + r < w.rows && at.column + c < w.columns)
      across[c][r] = x[(at.column + c) * w.rows + at.row + r];
  }
  __syncthreads();
}

template <int V>
__device__ __forceinline__ void update_tile(const Update& a, const MuonMatrix& w, SharedTile& across,
                                            SharedTile& shared) {
  const Square at(w);
  const float kept = a.numbers[0], rate = a.numbers[1] * w.size, weight = a.numbers[2];
  if (w.rows > w.columns) read_across(a, w, at, across);
  WeightPart copies = w.copies;
  copies.rows = w.rows, copies.columns = w.columns;
  over<V>(w, at, [&](int r, int c) {
    const int64_t inside = (at.row + r) * w.columns + at.column + c;
    float p[V], x[V], average[V];
    load_values<V>(a.p + w.p + inside, p);
    found<V>(a, w, at, r, c, across, x);
#pragma unroll
    for (int i = 0; i < V; ++i) p[i] = fmaf(rate, x[i], kept * p[i]);
    store_values<V>(a.p + w.p + inside, p);
    write_copies<V>(copies, at.row + r, at.column + c, p, &shared[r][c]);
    if (!a.average) return;
    load_values<V>(a.average + w.own + inside, average);
#pragma unroll
    for (int i = 0; i < V; ++i) average[i] = fmaf(weight, p[i] - average[i], average[i]);
    store_values<V>(a.average + w.own + inside, average);
  });
  if (!copies.transposed) return;
  __syncthreads();
  write_transposed(copies, at.row, at.column, shared);
}

__global__ void __launch_bounds__(kThreads) update_kernel(const Update a, bool wide) {
  __shared__ SharedTile across, shared;
  const MuonMatrix w = a.table.matrices[matrix_of(a.table, blockIdx.x)];
  in_fours(w, wide) ? update_tile<4>(a, w, across, shared) : update_tile<1>(a, w, across, shared);
}

bool launchable(const MuonTable& t) {
  return t.matrices && t.count > 0 && t.tiles > 0 && t.tiles <= INT32_MAX;
}

}  // namespace

int64_t number_tiles(std::vector<MuonMatrix>& matrices) {
  int64_t tiles = 0;
  const auto up = [](int64_t n) { return (n + kTileSide - 1) / kTileSide; };
  for (MuonMatrix& m : matrices) m.first_tile = tiles, tiles += up(m.rows) * up(m.columns);
  return tiles;
}

cudaError_t muon_directions(const MuonDirectionParams& p, cudaStream_t stream) {
  if (p.table.count == 0) return cudaSuccess;
  if (!launchable(p.table) || !p.g || !p.m || !p.scale || !p.partial || !p.inverse || !p.x)
    return cudaErrorInvalidValue;
  const Directions a{p.table,
                     p.g,
                     p.scale,
                     p.m,
                     static_cast<float>(p.momentum),
                     static_cast<float>(1 - p.momentum),
                     static_cast<float>(p.least_norm),
                     p.partial,
                     p.inverse,
                     static_cast<Half*>(p.x)};
  const bool wide = aligned(p.g, 16) && aligned(p.m, 16) && aligned(p.x, 8);
  const auto tiles = static_cast<unsigned>(p.table.tiles);
  momentum_kernel<<<tiles, kThreads, 0, stream>>>(a, wide);
  norms_kernel<<<static_cast<unsigned>(p.table.count), kThreads, 0, stream>>>(a);
  direction_kernel<<<tiles, kThreads, 0, stream>>>(a, wide);
  return cudaGetLastError();
}

cudaError_t muon_polynomial(const MuonPolynomialParams& p, cudaStream_t stream) {
  if (p.values == 0) return cudaSuccess;
  if (!p.grams || p.count < 1 || !p.gram || !p.squares) return cudaErrorInvalidValue;
  const Polynomial a{p.grams,
                     p.count,
                     p.values,
                     static_cast<const Half*>(p.gram),
                     static_cast<Half*>(p.squares),
                     static_cast<float>(p.a),
                     static_cast<float>(p.b),
                     static_cast<float>(p.c)};
  const bool eights = p.eights && aligned(p.gram, 16) && aligned(p.squares, 16);
  const int64_t each = kThreads * (eights ? 8 : 1), blocks = (p.values + each - 1) / each;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  if (eights)
    polynomial_kernel<8><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a);
  else
    polynomial_kernel<1><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t muon_update(const MuonUpdateParams& p, cudaStream_t stream) {
  if (p.table.count == 0) return cudaSuccess;
  if (!launchable(p.table) || !p.p || !p.x || !p.numbers) return cudaErrorInvalidValue;
  const Update a{p.table, p.p, p.average, static_cast<const Half*>(p.x), p.numbers};
  const bool wide = aligned(p.p, 16) && aligned(p.average, 16) && aligned(p.x, 8);
  update_kernel<<<static_cast<unsigned>(p.table.tiles), kThreads, 0, stream>>>(a, wide);
  return cudaGetLastError();
}

}  // namespace pom::kernels
