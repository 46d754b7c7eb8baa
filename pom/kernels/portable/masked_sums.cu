// Rows of floats added up in order, over the pieces of runs. A block takes a run and some columns; where runs
// are long, groups of its threads take stretches of the pieces, whose sums are added up first to last, so
// that the order is the same for any run: a piece at a time up to kGroups of them, then a stretch at a time.
#include "pom/kernels/common/columns.cuh"
#include "pom/kernels/portable/masked_cut.cuh"
#include "pom/kernels/portable/masked_parts.h"

namespace pom::kernels::masked {
namespace {

constexpr int kGroups = 8;

struct Sums {
  Cut cut;
  int64_t columns, tiles;
  const float* in;
  float* out;
  Walk how;
};

// The sum of what comes before this thread's stretch, and of all. All threads of the block call it.
template <int G>
__device__ __forceinline__ float before_stretch(float mine, float* shared, float& all) {
  constexpr int kLanes = kThreads / G;
  shared[threadIdx.x] = mine;
  __syncthreads();
  const int group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  float before = 0;
  all = 0;
  for (int g = 0; g < G; ++g) {
    if (g == group) before = all;
    all += shared[g * kLanes + lane];
  }
  return before;
}

template <int G>
__global__ void __launch_bounds__(kThreads) add_kernel(const Sums a) {
  constexpr int kLanes = kThreads / G;
  __shared__ float shared[kThreads];
  const int64_t run = blockIdx.x / a.tiles, column = blockIdx.x % a.tiles * kLanes + threadIdx.x % kLanes;
  const bool active = column < a.columns;
  const Run r = run_at(a.cut, run);
  const int64_t each = (r.count + G - 1) / G;
  const int64_t first = min(each * (threadIdx.x / kLanes), r.count), end = min(first + each, r.count);
  const float* in = a.in + r.first_piece * a.columns + column;
  float sum = 0;
#pragma unroll 4
  for (int64_t i = first; i < end; ++i) sum += active ? in[i * a.columns] : 0.0f;
  float all = sum;
  if constexpr (G > 1) before_stretch<G>(sum, shared, all);
  if (active && threadIdx.x < kLanes) a.out[run * a.columns + column] = all;
}

// What the other run adds for piece i, counted in the walk's order, of a run of `length` pieces: nothing for
// the last of them, whose sum is whole, and where there is no such run. The neighbour that lies ahead of a
// walk backward may be shorter: then all of it.
__device__ __forceinline__ float of_other(const Sums& a, const Run& r, int64_t i, int64_t column) {
  if (!a.how.other) return 0;
  const int64_t length = parts(a.cut.run, a.cut.piece);
  int64_t from;
  if (a.how.backward) {
    const int64_t place = min(r.count - 1 - i, r.next_count);  // so many pieces of the next run
    if (place == 0) return 0;
    from = r.first_piece + length + place - 1;
  } else {
    if (r.first || i + 1 == length) return 0;
    from = r.first_piece - length + i + 1;
  }
  return a.how.other[from * a.columns + column];
}

template <int G>
__global__ void __launch_bounds__(kThreads) walk_kernel(const Sums a) {
  constexpr int kLanes = kThreads / G;
  __shared__ float shared[kThreads];
  const int64_t run = blockIdx.x / a.tiles, column = blockIdx.x % a.tiles * kLanes + threadIdx.x % kLanes;
  const bool active = column < a.columns;
  const Run r = run_at(a.cut, run);
  const int64_t each = (r.count + G - 1) / G;
  const int64_t first = min(each * (threadIdx.x / kLanes), r.count), end = min(first + each, r.count);
  const auto place = [&](int64_t i) {
    return (r.first_piece + (a.how.backward ? r.count - 1 - i : i)) * a.columns + column;
  };
  float sum = 0;
  if constexpr (G > 1) {
    float all;
#pragma unroll 4
    for (int64_t i = first; i < end; ++i) sum += active ? a.in[place(i)] : 0.0f;
    sum = before_stretch<G>(sum, shared, all);
  }
  if (!active) return;
  constexpr int U = 4;
  for (int64_t i = first; i < end; i += U) {
    float x[U];
#pragma unroll
    for (int u = 0; u < U; ++u) x[u] = i + u < end ? a.in[place(i + u)] : 0.0f;
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (i + u >= end) break;
      if (a.how.own) sum += x[u];
      a.out[place(i + u)] = sum + of_other(a, r, i + u, column);
      if (!a.how.own) sum += x[u];
    }
  }
}

template <class Launch>
cudaError_t with_groups(Sums a, const Launch& launch) {
  const bool many = a.cut.pieces_of_run() > kGroups;
  const int64_t lanes = many ? kThreads / kGroups : kThreads;
  a.tiles = (a.columns + lanes - 1) / lanes;
  const int64_t blocks = a.cut.runs * a.tiles;
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  launch(a, many, static_cast<unsigned>(blocks));
  return cudaGetLastError();
}

}  // namespace

cudaError_t add_pieces(const Cut& cut, int64_t columns, const float* pieces, float* runs,
                       cudaStream_t stream) {
  return with_groups({cut, columns, 1, pieces, runs, {}}, [&](const Sums& a, bool many, unsigned blocks) {
    if (many)
      add_kernel<kGroups><<<blocks, kThreads, 0, stream>>>(a);
    else
      add_kernel<1><<<blocks, kThreads, 0, stream>>>(a);
  });
}

cudaError_t walk_pieces(const Cut& cut, int64_t columns, const Walk& how, const float* in, float* out,
                        cudaStream_t stream) {
  return with_groups({cut, columns, 1, in, out, how}, [&](const Sums& a, bool many, unsigned blocks) {
    if (many)
      walk_kernel<kGroups><<<blocks, kThreads, 0, stream>>>(a);
    else
      walk_kernel<1><<<blocks, kThreads, 0, stream>>>(a);
  });
}

}  // namespace pom::kernels::masked
