// What the bandwidth-bound kernels share. Tensors are (B, N, C), batch, tokens, columns; a block takes a tile
// of columns and a run of tokens of one batch item, a thread V columns of every groups-th token. Sums over
// tokens are taken in a fixed order: by the thread, over the groups of a block, over the parts of a sequence.
#pragma once

#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <type_traits>

namespace pom::kernels {

constexpr int kThreads = 256;

// ---- V stored values as one word of memory ----

template <int Bytes>
struct WordOf;
template <>
struct WordOf<2> {
  using type = uint16_t;
};
template <>
struct WordOf<4> {
  using type = uint32_t;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<16> {
  using type = uint4;
};
template <class T, int V>
using Word = typename WordOf<sizeof(T) * V>::type;

template <int V, class T>
__device__ __forceinline__ Word<T, V> load(const T* p) {
  return *reinterpret_cast<const Word<T, V>*>(p);
}
template <int V, class T>
__device__ __forceinline__ void store(T* p, Word<T, V> word) {
  *reinterpret_cast<Word<T, V>*>(p) = word;
}

__device__ __forceinline__ float raised(float x) {
  return x;
}
__device__ __forceinline__ float raised(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float raised(__half x) {
  return __half2float(x);
}
template <class T>
__device__ __forceinline__ T lowered(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(x);
  else
    return __float2half_rn(x);
}

template <class T, int V>
__device__ __forceinline__ void unpack(Word<T, V> word, float (&values)[V]) {
  T stored[V];
  memcpy(stored, &word, sizeof word);
#pragma unroll
  for (int v = 0; v < V; ++v) values[v] = raised(stored[v]);
}

template <class T, int V>
__device__ __forceinline__ Word<T, V> pack(const float (&values)[V]) {
  Word<T, V> word;
  if constexpr (std::is_same_v<T, __nv_bfloat16> && V % 2 == 0) {  // two by one instruction
    __nv_bfloat162 pairs[V / 2];
#pragma unroll
    for (int v = 0; v < V; v += 2) pairs[v / 2] = __floats2bfloat162_rn(values[v], values[v + 1]);
    memcpy(&word, pairs, sizeof word);
  } else {
    T stored[V];
#pragma unroll
    for (int v = 0; v < V; ++v) stored[v] = lowered<T>(values[v]);
    memcpy(&word, stored, sizeof word);
  }
  return word;
}

template <int V, class T>
__device__ __forceinline__ void load_values(const T* p, float (&values)[V]) {
  unpack<T, V>(load<V>(p), values);
}
template <int V, class T>
__device__ __forceinline__ void store_values(T* p, const float (&values)[V]) {
  store<V>(p, pack<T, V>(values));
}

inline bool aligned(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) == 0;
}

// ---- who takes what ----

struct Tiles {
  int64_t tokens = 0, columns = 0, part_tokens = 0;
  int parts = 1;      // runs of tokens, one block after another in the partial sums
  int lanes = 1;      // threads across the columns; a power of two up to 32
  int64_t tiles = 1;  // blocks across the columns
  int64_t blocks = 0;
};

// Enough blocks for any GPU when the batch is small, and never a part of a few tokens. Of the sizes alone,
// not of the device nor of alignment: the same sums everywhere.
inline int parts_of(int64_t batch, int64_t tokens, int64_t columns) {
  constexpr int64_t kEnough = 1024, kShortest = 64;
  const int64_t blocks = batch * ((columns + 255) / 256);
  const int64_t longest = (tokens + kShortest - 1) / kShortest;
  int64_t parts = blocks > 0 ? (kEnough + blocks - 1) / blocks : 1;
  if (parts > longest) parts = longest;
  if (parts < 1) return 1;
  const int64_t part_tokens = (tokens + parts - 1) / parts;
  return static_cast<int>((tokens + part_tokens - 1) / part_tokens);
}

inline Tiles tiles_of(int64_t batch, int64_t tokens, int64_t columns, int V) {
  Tiles t;
  t.tokens = tokens, t.columns = columns;
  t.parts = parts_of(batch, tokens, columns);
  t.part_tokens = (tokens + t.parts - 1) / t.parts;
  const int64_t vectors = (columns + V - 1) / V;
  t.lanes = 32;  // fewer where more than an eighth of them would be idle
  while (t.lanes > 4 && (vectors + t.lanes - 1) / t.lanes * t.lanes - vectors > vectors / 8) t.lanes /= 2;
  t.tiles = (vectors + t.lanes - 1) / t.lanes;
  t.blocks = batch * t.parts * t.tiles;
  return t;
}
inline bool launchable(const Tiles& t) {
  return t.blocks <= INT32_MAX;
}

struct Place {
  int64_t batch, tile, first, end;  // tokens [first, end), of which this thread takes every groups-th
  int64_t column;                   // first of this thread's V
  int part, groups;
  bool active;
};

template <int V>
__device__ __forceinline__ Place place_of(const Tiles& t) {
  Place p;
  p.tile = blockIdx.x % t.tiles;
  const int64_t run = blockIdx.x / t.tiles;
  p.part = static_cast<int>(run % t.parts);
  p.batch = run / t.parts;
  p.groups = kThreads / t.lanes;
  p.first = p.part * t.part_tokens + threadIdx.x / t.lanes;
  p.end = min(t.tokens, (p.part + 1) * t.part_tokens);
  p.column = (p.tile * t.lanes + threadIdx.x % t.lanes) * V;
  p.active = p.column < t.columns;
  return p;
}

// Adds up the threads' sums over the groups of a block, first to last, into the tile's part of `out` (a row
// of columns). All threads of the block call it; `shared` is kThreads * V floats.
template <int V>
__device__ __forceinline__ void sum_groups(const Tiles& t, const Place& p, const float (&sums)[V],
                                           float* shared, float divisor, float* out) {
  __syncthreads();  // the one before may still be read
#pragma unroll
  for (int v = 0; v < V; ++v) shared[threadIdx.x * V + v] = sums[v];
  __syncthreads();
  const int width = t.lanes * V;
  for (int c = threadIdx.x; c < width; c += kThreads) {
    const int64_t column = p.tile * width + c;
    if (column >= t.columns) break;
    float sum = 0;
    for (int g = 0; g < p.groups; ++g) sum += shared[g * width + c];
    out[column] = sum / divisor;
  }
}

// partial (B, parts, columns) -> out (B, columns), the parts in order.
static __global__ void __launch_bounds__(kThreads)
    fold_kernel(const float* partial, float* out, int64_t batch, int parts, int64_t columns, float divisor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= batch * columns) return;
  const float* p = partial + (i / columns) * parts * columns + i % columns;
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += p[part * columns];
  out[i] = sum / divisor;
}

inline cudaError_t fold(const float* partial, float* out, int64_t batch, int parts, int64_t columns,
                        float divisor, cudaStream_t stream) {
  const int64_t blocks = (batch * columns + kThreads - 1) / kThreads;
  fold_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(partial, out, batch, parts, columns,
                                                                      divisor);
  return cudaGetLastError();
}

}  // namespace pom::kernels
