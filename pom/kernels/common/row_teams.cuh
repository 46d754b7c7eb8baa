// What the kernels that hold a row in registers share: a team of 32 to 512 threads takes a row, the teams of
// a block the rows of a run of tokens of one picture. d width; sums over rows are taken in a fixed order.
#pragma once

#include "pom/kernels/common/columns.cuh"
#include "pom/kernels/portable/modulation.h"

namespace pom::kernels {

struct Rows {
  int64_t tokens, width, part_tokens;
  int parts, team;                                              // threads of a row: a multiple of 32
  int threads() const { return team == 32 ? kThreads : team; }  // of a block
};

constexpr int64_t kManyBlocks = 4096;  // where there are no sums over rows

// A block walks its rows team by team, so that many blocks of few rows are what keeps a GPU busy. Where
// there are no sums over rows, parts cost nothing.
inline int row_parts(const RowSizes& s, int64_t enough) {
  if (s.batch < 1 || s.tokens < 1) return 1;
  const int64_t shortest = s.width <= 384 ? 32 : 4;  // a warp or a block for a row
  const int64_t wanted = enough > s.batch ? enough / s.batch : 1, even = (s.tokens + wanted - 1) / wanted;
  const int64_t each = even > shortest ? even : shortest;
  return static_cast<int>((s.tokens + each - 1) / each);
}

// For `held` values of a row in a thread.
inline Rows rows_of(const RowSizes& s, int held, int parts) {
  const int team = static_cast<int>((s.width + 32 * held - 1) / (32 * held)) * 32;
  return {s.tokens, s.width, (s.tokens + parts - 1) / parts, parts, team};
}
// Calls f.template operator()<V, Vectors>(): a thread holds Vectors times V values of a row, as many as leave
// few of the team's places empty. `fours`: whether tensors can be read and written by four values.
template <class F>
cudaError_t with_vectors(const RowSizes& s, bool fours, const F& f) {
  if (s.width % 4 != 0 || !fours) return f.template operator()<1, 16>();
  if (s.width <= 256) return f.template operator()<4, 2>();
  if (s.width % 384 == 0 && s.width <= 3072) return f.template operator()<4, 3>();
  return f.template operator()<4, 4>();
}
inline bool valid(const RowSizes& s) {
  return s.batch >= 0 && s.tokens >= 0 && s.width >= 1;
}

// The sum over a team, in every thread of it. A team larger than a warp is the whole block: see
// Rows::threads().
__device__ __forceinline__ float team_sum(float value, int team, float* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (team == 32) return value;
  __syncthreads();  // the sum before may still be read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < team / 32; ++warp) sum += shared[warp];
  return sum;
}

// Two of them at once.
__device__ __forceinline__ float2 team_sums(float2 value, int team, float* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value.x += __shfl_xor_sync(0xffffffffu, value.x, offset);
    value.y += __shfl_xor_sync(0xffffffffu, value.y, offset);
  }
  if (team == 32) return value;
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) shared[2 * warp] = value.x, shared[2 * warp + 1] = value.y;
  __syncthreads();
  float2 sum = make_float2(0, 0);
  for (int w = 0; w < team / 32; ++w) sum.x += shared[2 * w], sum.y += shared[2 * w + 1];
  return sum;
}

// The same over a block with one barrier: the halves of `shared` (kFloats floats) take turns, so that no sum
// waits for the readers of the one before.
struct BlockSums {
  static constexpr int kFloats = 2 * 2 * 32;
  float* shared;
  int turn = 0;

  __device__ __forceinline__ float2 operator()(float2 value) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const bool upper = lane & 16;  // half of a warp for each of the two
    float mine = upper ? value.y : value.x;
    mine += __shfl_xor_sync(0xffffffffu, upper ? value.x : value.y, 16);
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, offset);
    float* const half = shared + turn * (kFloats / 2);
    if (lane % 16 == 0) half[2 * warp + upper] = mine;
    turn ^= 1;
    __syncthreads();
    float2 sum = make_float2(0, 0);
    for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w)
      sum.x += half[2 * w], sum.y += half[2 * w + 1];
    return sum;
  }
};

// The columns of thread `member` of a team: vectors member, member + team, …, of V values each.
template <int V>
__device__ __forceinline__ int64_t column_of(int member, int i, int team) {
  return (static_cast<int64_t>(i) * team + member) * V;
}

// `offset` + a row of (B, d), the thread's values of it; 0 beyond the width.
template <int V, int Vectors>
__device__ __forceinline__ void load_row(const Rows& r, const float* row, int member, float offset,
                                         float (&values)[Vectors][V]) {
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int64_t c = column_of<V>(member, i, r.team);
#pragma unroll
    for (int v = 0; v < V; ++v) values[i][v] = c < r.width ? offset + row[c + v] : 0.0f;
  }
}

// ---- the norm of a row that a team holds, with 0 beyond the width ----

struct Moments {
  float mean, rstd;
};

// x becomes x - mean.
template <int V, int Vectors>
__device__ __forceinline__ Moments centre_row(const Rows& r, int member, float eps, float (&x)[Vectors][V],
                                              float* shared) {
  float sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < Vectors; ++i)
#pragma unroll
    for (int v = 0; v < V; ++v) sum += x[i][v];
  const float mean = team_sum(sum, r.team, shared) / static_cast<float>(r.width);
#pragma unroll
  for (int i = 0; i < Vectors; ++i)
#pragma unroll
    for (int v = 0; v < V; ++v) {
      x[i][v] -= mean;
      if (column_of<V>(member, i, r.team) < r.width) squares = fmaf(x[i][v], x[i][v], squares);
    }
  const float variance = team_sum(squares, r.team, shared) / static_cast<float>(r.width);
  return {mean, 1.0f / sqrtf(variance + eps)};
}

// Of V values, x becomes the normal value and d the gradient of it; both are added to the thread's sums, of
// which `of_row` are those over the row: of d, and of d x.
template <int V>
__device__ __forceinline__ void differentiate_norm(const Moments& m, const float (&scale)[V], float (&x)[V],
                                                   float (&d)[V], float (&dscale)[V], float (&dshift)[V],
                                                   float2& of_row) {
#pragma unroll
  for (int v = 0; v < V; ++v) {  // beyond the width d is 0 and so is what is added
    x[v] = (x[v] - m.mean) * m.rstd;
    dshift[v] += d[v];
    dscale[v] = fmaf(d[v], x[v], dscale[v]);
    d[v] *= scale[v];
    of_row.x += d[v];
    of_row.y = fmaf(d[v], x[v], of_row.y);
  }
}

// Adds up the teams' sums in order and writes the row of `out`; all threads call it.
template <int V, int Vectors>
__device__ __forceinline__ void sum_teams(const Rows& r, const float (&sums)[Vectors][V], float* shared,
                                          float* out) {
  const int teams = blockDim.x / r.team, member = threadIdx.x % r.team;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Vectors; ++i)
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int64_t c = column_of<V>(member, i, r.team) + v;
      if (c >= r.width) continue;
      if (teams == 1)
        out[c] = sums[i][v];
      else
        shared[threadIdx.x / r.team * r.width + c] = sums[i][v];
    }
  if (teams == 1) return;
  __syncthreads();
  for (int64_t c = threadIdx.x; c < r.width; c += blockDim.x) {
    float sum = 0;
    for (int team = 0; team < teams; ++team) sum += shared[team * r.width + c];
    out[c] = sum;
  }
}

// ---- the sums of parts, several of them in one launch: a block takes 32 columns of one picture, its groups
// neighbouring stretches of parts ----

constexpr int kFoldColumns = 32, kFoldGroups = kThreads / kFoldColumns;

struct Folds {
  struct Fold {
    float *from, *to;  // (B, parts, d) -> (B, d)
  };
  Fold each[4];
};

static __global__ void __launch_bounds__(kThreads)
    fold_parts_kernel(const Folds folds, int parts, int64_t width) {
  __shared__ float sums[kFoldGroups][kFoldColumns];
  const int lane = threadIdx.x % kFoldColumns, group = threadIdx.x / kFoldColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kFoldColumns + lane, batch = blockIdx.y;
  const Folds::Fold& f = folds.each[blockIdx.z];
  const int first = parts * group / kFoldGroups, end = parts * (group + 1) / kFoldGroups;
  float sum = 0;
  if (column < width) {
    const float* p = f.from + batch * parts * width + column;
#pragma unroll 8
    for (int part = first; part < end; ++part) sum += p[part * width];
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group != 0 || column >= width) return;
  for (int g = 1; g < kFoldGroups; ++g) sum += sums[g][lane];
  f.to[batch * width + column] = sum;
}

inline cudaError_t fold_parts(const Folds& folds, int count, const RowSizes& s, int parts,
                              cudaStream_t stream) {
  constexpr int64_t most = 65535;  // a grid's height
  if (s.batch > most) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>((s.width + kFoldColumns - 1) / kFoldColumns),
                  static_cast<unsigned>(s.batch), static_cast<unsigned>(count));
  fold_parts_kernel<<<grid, kThreads, 0, stream>>>(folds, parts, s.width);
  return cudaGetLastError();
}

// ---- dtypes: the stream is fp32 or bf16, a branch fp16 also ----

template <class Launch>
cudaError_t with_stream(Dtype dtype, const Launch& launch) {
  if (dtype == Dtype::fp32) return launch(float());
  if (dtype == Dtype::bf16) return launch(__nv_bfloat16());
  return cudaErrorInvalidValue;
}
template <class Launch>
cudaError_t with_dtypes(Dtype stream, Dtype branch, const Launch& launch) {
  return with_stream(stream, [&](auto x) {
    if (branch == Dtype::fp16) return launch(x, __half());
    return with_stream(branch, [&](auto y) { return launch(x, y); });
  });
}

}  // namespace pom::kernels
