// Each order has the widest tile that holds whole features and leaves registers for the sums. What tiles
// carry over: a block takes some columns of one sequence, its groups of threads neighbouring stretches
// of tiles; each is summed up, then walked again from what those before have.
#include "pom/kernels/sm90/scan/scan_epilogues.cuh"

namespace pom::kernels {
namespace {

constexpr int kCarryColumns = 32, kCarryGroups = 16;

template <class In, int Order>
cudaError_t scan(const Gemm& p, const ScanEpilogue& t, cudaStream_t stream) {
  constexpr int TN = Order % 3 == 0 ? 96 : 128;
  static_assert(TN % sums_block(Order) == 0);
  using Epilogue = ScanEpilogueOf<In, Order>;
  const typename Epilogue::Params params{affine_of(p), static_cast<int>(p.sizes.tokens),
                                         static_cast<In*>(t.prefix), t.totals};
  return launch_gemm<GemmTraits<In, kTileRows, TN, 1, false>, Epilogue>(p, params, stream);
}

template <class In>
cudaError_t scan_of_order(const Gemm& p, const ScanEpilogue& t, cudaStream_t stream) {
  switch (t.order) {
    case 1:
      return scan<In, 1>(p, t, stream);
    case 2:
      return scan<In, 2>(p, t, stream);
    case 3:
      return scan<In, 3>(p, t, stream);
    case 4:
      return scan<In, 4>(p, t, stream);
    case 6:
      return scan<In, 6>(p, t, stream);
    case 8:
      return scan<In, 8>(p, t, stream);
    default:
      return cudaErrorNotSupported;
  }
}

struct Carry {
  int tokens, columns;
  float* totals;
  const float* sum;
  float* total;
};

// Stretch g of [0, count) in kCarryGroups.
__device__ __forceinline__ int stretch(int count, int g) {
  return static_cast<int>(static_cast<int64_t>(count) * g / kCarryGroups);
}

__global__ void __launch_bounds__(kCarryColumns* kCarryGroups) carry_kernel(const Carry c) {
  wait_for_before();
  let_next_start();
  __shared__ float sums[kCarryGroups][kCarryColumns];
  const int lane = threadIdx.x % kCarryColumns, group = threadIdx.x / kCarryColumns;
  const int column = blockIdx.x * kCarryColumns + lane, batch = blockIdx.y;
  const bool inside = column < c.columns;
  const int64_t row = static_cast<int64_t>(batch) * c.tokens, tile = row / kTileRows;
  const int tiles = static_cast<int>((row + c.tokens - 1) / kTileRows - tile) + 1;
  const int first = stretch(tiles, group), end = stretch(tiles, group + 1);
  float* const totals = c.totals + (tile + batch) * c.columns + column;
  const int64_t at = static_cast<int64_t>(batch) * c.columns + column;
  const auto of = [&](int t) -> float& { return totals[static_cast<int64_t>(t) * c.columns]; };
  float sum = 0;
  if (inside)
#pragma unroll 8
    for (int t = first; t < end; ++t) sum += of(t);
  sums[group][lane] = sum;
  __syncthreads();
  if (!inside) return;
  sum = c.sum ? c.sum[at] : 0;
  for (int g = 0; g < group; ++g) sum += sums[g][lane];
  for (int t = first; t < end; ++t) {
    const float own = of(t);
    of(t) = sum;
    sum += own;
  }
  if (c.total && group == kCarryGroups - 1) c.total[at] = sum;
}

bool typed(const Gemm& p) {
  return p.dtype == Dtype::bf16 || p.dtype == Dtype::fp16;
}

}  // namespace

int64_t scan_slots(const GemmSizes& sizes) {
  return sums_slots(sizes, {});
}

cudaError_t scan(const Gemm& p, const ScanEpilogue& t, cudaStream_t stream) {
  if (!gemm_supported(p) || !typed(p) || !t.prefix || !t.totals || !sums_order(t.order))
    return cudaErrorNotSupported;
  if (p.sizes.outputs % (8 * t.order) != 0) return cudaErrorNotSupported;
  if (p.sizes.rows() == 0) return cudaSuccess;
  return p.dtype == Dtype::bf16 ? scan_of_order<__nv_bfloat16>(p, t, stream)
                                : scan_of_order<__half>(p, t, stream);
}

cudaError_t scan_carry(const CarryParams& p, cudaStream_t stream) {
  if (!p.totals || p.sizes.tokens < 1) return cudaErrorInvalidValue;
  if (p.sizes.batch == 0) return cudaSuccess;
  if (p.sizes.batch > 65535 || p.sizes.rows() >= (1 << 30)) return cudaErrorInvalidValue;
  const Carry c{static_cast<int>(p.sizes.tokens), static_cast<int>(p.sizes.outputs), p.totals, p.sum,
                p.total};
  const dim3 grid(static_cast<unsigned>((p.sizes.outputs + kCarryColumns - 1) / kCarryColumns),
                  static_cast<unsigned>(p.sizes.batch));
  return launch(carry_kernel, grid, dim3(kCarryColumns * kCarryGroups), 0, stream, 1, c);
}

}  // namespace pom::kernels
