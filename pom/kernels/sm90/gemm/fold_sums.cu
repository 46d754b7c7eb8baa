// The sums of tiles become the means that queries see. A block takes some columns of one sequence; its groups
// of threads walk neighbouring stretches of runs, so that a prefix is: sum each stretch, add up the stretches
// before, walk again.
#include "pom/kernels/sm90/gemm/epilogue_sums.cuh"

namespace pom::kernels {
namespace {

constexpr int kFoldColumns = 32, kFoldGroups = 16;

struct Fold {
  RunShape runs;
  int columns;
  const float* partial;
  int window;  // 0: all before
  const float* counts;
  float* H;
  float* largest;
  bool largest_of_runs;
  const float* past;
  float* left;
  const float* seen;
};

// Of one run: its tiles lie one after another, each in the slot tile + run.
__device__ __forceinline__ float run_sum(const Fold& f, int64_t first_row, int64_t run, int from, int to,
                                         int column) {
  const int64_t tile = (first_row + from) / kTileRows, last = (first_row + to - 1) / kTileRows;
  const float* p = f.partial + (tile + run) * f.columns + column;
  float sum = 0;
#pragma unroll 8
  for (int64_t t = tile; t <= last; ++t, p += f.columns) sum += *p;
  return sum;
}

// Stretch g of [0, count) in kFoldGroups.
__device__ __forceinline__ int stretch(int count, int g) {
  return static_cast<int>(static_cast<int64_t>(count) * g / kFoldGroups);
}

__device__ __forceinline__ void keep_largest(const Fold& f, int64_t place, float value) {
  if (f.largest)  // non-negative floats have the order of their bits
    atomicMax(reinterpret_cast<int*>(f.largest + place), __float_as_int(fabsf(value) * (1.0f / 448.0f)));
}

// One run a sequence: the groups share its tiles.
__global__ void __launch_bounds__(kFoldColumns* kFoldGroups) fold_one_kernel(const Fold f) {
  wait_for_before();
  let_next_start();
  __shared__ float sums[kFoldGroups][kFoldColumns];
  const int lane = threadIdx.x % kFoldColumns, group = threadIdx.x / kFoldColumns;
  const int column = blockIdx.x * kFoldColumns + lane, batch = blockIdx.y;
  const int64_t row = static_cast<int64_t>(batch) * f.runs.tokens;
  const int64_t tile = row / kTileRows;
  const int tiles = static_cast<int>((row + f.runs.tokens - 1) / kTileRows - tile) + 1;
  float sum = 0;
  if (column < f.columns) {
    const float* p = f.partial + (tile + batch) * f.columns + column;
#pragma unroll 4
    for (int t = stretch(tiles, group); t < stretch(tiles, group + 1); ++t)
      sum += p[static_cast<int64_t>(t) * f.columns];
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group != 0 || column >= f.columns) return;
  for (int g = 1; g < kFoldGroups; ++g) sum += sums[g][lane];
  sum /= f.counts ? 1e-7f + f.counts[batch] : static_cast<float>(f.runs.tokens);
  f.H[static_cast<int64_t>(batch) * f.columns + column] = sum;
  keep_largest(f, batch, sum);
}

// Several runs, each with what it sees of those before.
__global__ void __launch_bounds__(kFoldColumns* kFoldGroups) fold_runs_kernel(const Fold f, bool causal) {
  wait_for_before();
  let_next_start();
  __shared__ float sums[kFoldGroups][kFoldColumns], numbers[kFoldGroups];
  const int lane = threadIdx.x % kFoldColumns, group = threadIdx.x / kFoldColumns;
  const int column = blockIdx.x * kFoldColumns + lane, batch = blockIdx.y, runs = f.runs.runs;
  const bool inside = column < f.columns;
  const int64_t row = static_cast<int64_t>(batch) * f.runs.tokens, run0 = static_cast<int64_t>(batch) * runs;
  const int first = stretch(runs, group), end = stretch(runs, group + 1);
  const auto from = [&](int j) { return j * f.runs.run_tokens; };
  const auto to = [&](int j) { return min(from(j) + f.runs.run_tokens, f.runs.tokens); };
  const auto count = [&](int j) {
    return f.counts ? f.counts[run0 + j] : static_cast<float>(to(j) - from(j));
  };
  const int kept = max(f.window, 1);  // sums of runs before these, the last of which has number -1
  const auto kept_at = [&](int i) { return (static_cast<int64_t>(batch) * kept + i) * f.columns + column; };
  const auto value = [&](int j) {
    if (!inside) return 0.0f;
    return j < 0 ? f.past[kept_at(kept + j)] : run_sum(f, row, run0 + j, from(j), to(j), column);
  };
  float sum = 0, number = 0;
  const bool prefix = causal && f.window == 0;
  if (prefix) {
    for (int j = first; j < end; ++j) sum += value(j), number += count(j);
    sums[group][lane] = sum;
    if (lane == 0) numbers[group] = number;
    __syncthreads();
    sum = f.past ? value(-1) : 0, number = 0;
    for (int g = 0; g < group; ++g) sum += sums[g][lane], number += numbers[g];
  }
  for (int j = first; j < end; ++j) {
    if (!prefix) {
      sum = number = 0;
      const int oldest = j - f.window + 1;
      for (int i = !causal ? j : f.past ? oldest : max(0, oldest); i < j; ++i)
        sum += value(i), number += i < 0 ? 0 : count(i);
    }
    sum += value(j), number += count(j);
    if (!inside) continue;
    const float mean = sum / (f.past ? f.seen[j] : 1e-7f + number);
    f.H[(run0 + j) * f.columns + column] = mean;
    keep_largest(f, f.largest_of_runs ? run0 + j : batch, mean);
    if (prefix && f.past && j == runs - 1) f.left[kept_at(0)] = sum;
  }
  if (f.past && !prefix && inside)
    for (int i = group; i < kept; i += kFoldGroups) f.left[kept_at(i)] = value(runs - kept + i);
}

}  // namespace

cudaError_t fold_sums(const FoldParams& p, cudaStream_t stream) {
  if (!p.partial || !p.H || p.sizes.tokens < 1 || p.window < 0) return cudaErrorInvalidValue;
  if (p.past && (!p.causal || !p.left || !p.seen || p.counts || p.left == p.past))
    return cudaErrorInvalidValue;
  if (p.sizes.batch == 0) return cudaSuccess;
  if (p.sizes.batch > 65535 || p.sizes.rows() >= (1 << 30)) return cudaErrorInvalidValue;
  const RunShape runs = run_shape(p.sizes, p.runs);
  const int64_t scales = p.sizes.batch * (p.largest_of_runs ? runs.runs : 1);
  if (p.largest)  // each byte 0x2b: about 6e-13, so that a scale is never zero
    if (const cudaError_t e = cudaMemsetAsync(p.largest, 0x2b, sizeof(float) * scales, stream);
        e != cudaSuccess)
      return e;
  Fold f{runs,      static_cast<int>(p.sizes.outputs),
         p.partial, static_cast<int>(p.window),
         p.counts,  p.H,
         p.largest, p.largest_of_runs,
         p.past,    p.left,
         p.seen};
  const dim3 grid(static_cast<unsigned>((p.sizes.outputs + kFoldColumns - 1) / kFoldColumns),
                  static_cast<unsigned>(p.sizes.batch));
  const dim3 block(kFoldColumns * kFoldGroups);
  if (f.runs.runs == 1 && !p.causal) return launch(fold_one_kernel, grid, block, 0, stream, 1, f);
  return launch(fold_runs_kernel, grid, block, 0, stream, 1, f, p.causal);
}

}  // namespace pom::kernels
