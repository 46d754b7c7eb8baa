// What stands around training's products: the sums of tiles folded, weights transposed or reordered. The
// weights change with every step, so these run with every step.
#include "pom/kernels/sm90/gemm/epilogues_backward.cuh"

namespace pom::kernels {
namespace {

// ---- sums of tiles: a block takes 32 columns of one sequence, its groups neighbouring stretches of tiles
// ----

constexpr int kSlotColumns = 32, kSlotGroups = 16;

struct Slots {
  int tokens, columns;
  const float* partial;
  float* out;
};

__global__ void __launch_bounds__(kSlotColumns* kSlotGroups) add_slots_kernel(const Slots f) {
  wait_for_before();
  let_next_start();
  __shared__ float sums[kSlotGroups][kSlotColumns];
  const int lane = threadIdx.x % kSlotColumns, group = threadIdx.x / kSlotColumns;
  const int column = blockIdx.x * kSlotColumns + lane, batch = blockIdx.y;
  const int64_t row = static_cast<int64_t>(batch) * f.tokens, tile = row / kTileRows;
  const int tiles = static_cast<int>((row + f.tokens - 1) / kTileRows - tile) + 1;
  float sum = 0;
  if (column < f.columns) {
    const float* p = f.partial + (tile + batch) * f.columns + column;
    const int first = static_cast<int>(static_cast<int64_t>(tiles) * group / kSlotGroups),
              end = static_cast<int>(static_cast<int64_t>(tiles) * (group + 1) / kSlotGroups);
#pragma unroll 4
    for (int t = first; t < end; ++t) sum += p[static_cast<int64_t>(t) * f.columns];
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group != 0 || column >= f.columns) return;
  for (int g = 1; g < kSlotGroups; ++g) sum += sums[g][lane];
  f.out[static_cast<int64_t>(batch) * f.columns + column] = sum;
}

// ---- transposing: tiles of 64 x 64, read and written as pairs ----

constexpr int kSide = 64, kTransposeThreads = 256;

__global__ void __launch_bounds__(kTransposeThreads)
    transpose_kernel(const uint32_t* from, uint32_t* to, int rows, int columns) {
  wait_for_before();
  let_next_start();
  __shared__ uint16_t tile[kSide][kSide + 2];
  const int row = blockIdx.y * kSide, column = blockIdx.x * kSide;
  const int pair = 2 * (threadIdx.x % 32), first = threadIdx.x / 32;
#pragma unroll
  for (int i = first; i < kSide; i += kTransposeThreads / 32) {
    if (row + i >= rows || column + pair >= columns) continue;
    const uint32_t word = from[(static_cast<int64_t>(row + i) * columns + column + pair) / 2];
    *reinterpret_cast<uint32_t*>(&tile[i][pair]) = word;
  }
  __syncthreads();
#pragma unroll
  for (int i = first; i < kSide; i += kTransposeThreads / 32) {
    if (column + i >= columns || row + pair >= rows) continue;
    const uint32_t word = tile[pair][i] | static_cast<uint32_t>(tile[pair + 1][i]) << 16;
    to[(static_cast<int64_t>(column + i) * rows + row + pair) / 2] = word;
  }
}

// ---- rows in the context's order ----

template <class Word>
__global__ void __launch_bounds__(256)
    rows_kernel(const Word* from, Word* to, int order, int64_t D, int width) {
  wait_for_before();
  let_next_start();
  const Word* source = from + context_row_of(blockIdx.x, order, D) * width;
  Word* target = to + static_cast<int64_t>(blockIdx.x) * width;
  for (int i = threadIdx.x; i < width; i += 256) target[i] = source[i];
}

bool valid(const WeightParams& p) {
  constexpr int64_t kMost = 1 << 22;  // rows of tiles: a grid's height is 65535
  return p.from && p.to && p.rows >= 0 && p.columns >= 0 && p.rows < kMost && p.columns < kMost &&
         p.rows % 2 == 0 && p.columns % 2 == 0 && reinterpret_cast<uintptr_t>(p.from) % 4 == 0 &&
         reinterpret_cast<uintptr_t>(p.to) % 4 == 0;
}

}  // namespace

cudaError_t add_slots(const AddSlotsParams& p, cudaStream_t stream) {
  if (!p.partial || !p.out || p.sizes.tokens < 1) return cudaErrorInvalidValue;
  if (p.sizes.batch == 0) return cudaSuccess;
  if (p.sizes.batch > 65535 || p.sizes.rows() >= (1 << 30)) return cudaErrorInvalidValue;
  const Slots f{static_cast<int>(p.sizes.tokens), static_cast<int>(p.sizes.outputs), p.partial, p.out};
  const dim3 grid(static_cast<unsigned>((p.sizes.outputs + kSlotColumns - 1) / kSlotColumns),
                  static_cast<unsigned>(p.sizes.batch));
  return launch(add_slots_kernel, grid, dim3(kSlotColumns * kSlotGroups), 0, stream, 1, f);
}

cudaError_t transpose(const WeightParams& p, cudaStream_t stream) {
  if (!valid(p)) return cudaErrorInvalidValue;
  if (p.rows == 0 || p.columns == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((p.columns + kSide - 1) / kSide),
                  static_cast<unsigned>((p.rows + kSide - 1) / kSide));
  return launch(transpose_kernel, grid, dim3(kTransposeThreads), 0, stream, 1,
                static_cast<const uint32_t*>(p.from), static_cast<uint32_t*>(p.to), static_cast<int>(p.rows),
                static_cast<int>(p.columns));
}

cudaError_t context_rows(const WeightParams& p, int order, cudaStream_t stream) {
  if (!valid(p) || order < 1 || p.rows % order != 0 || !context_order(order, p.rows / order))
    return cudaErrorInvalidValue;
  if (p.columns == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(p.rows));
  if (p.columns % 8 == 0 && aligned_to_16(p.from) && aligned_to_16(p.to))
    return launch(rows_kernel<uint4>, grid, dim3(256), 0, stream, 1, static_cast<const uint4*>(p.from),
                  static_cast<uint4*>(p.to), order, p.rows / order, static_cast<int>(p.columns / 8));
  return launch(rows_kernel<uint32_t>, grid, dim3(256), 0, stream, 1, static_cast<const uint32_t*>(p.from),
                static_cast<uint32_t*>(p.to), order, p.rows / order, static_cast<int>(p.columns / 2));
}

}  // namespace pom::kernels
