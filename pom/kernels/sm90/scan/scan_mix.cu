#include "pom/kernels/sm90/scan/scan_mix.cuh"

namespace pom::kernels {
namespace {

template <class In>
cudaError_t mix(const Gemm& p, const ScanMix& t, cudaStream_t stream) {
  if (t.block == 1) return launch_mix<In, 2, 1>(p, t, stream);
  if (t.block == 2) return launch_mix<In, 2, 2>(p, t, stream);
  return launch_mix<In, 2, 4>(p, t, stream);
}

}  // namespace

bool scan_mix_supported(const Gemm& p, int order, int64_t block) {
  const bool typed = p.dtype == Dtype::bf16 || p.dtype == Dtype::fp16;
  if (!typed || block < 1 || !sums_order(order) || !gemm_supported(p)) return false;
  if (order != 2) return block == 1 && p.sizes.outputs % (8 * order) == 0;
  return block <= kTileRows && (block & (block - 1)) == 0 && p.sizes.outputs % 32 == 0 &&
         p.sizes.tokens % block == 0;
}

int64_t scan_mix_rows(const GemmSizes& sizes) {
  return (sizes.rows() + 31) / 32 * 32;
}

int64_t scan_mix_work(const GemmSizes& sizes) {
  const int64_t row_tiles = (sizes.rows() + kTileRows - 1) / kTileRows;
  const int64_t columns = (sizes.outputs + kMixColumns - 1) / kMixColumns * kMixColumns;
  return kMixHead + row_tiles * columns * static_cast<int64_t>(sizeof(uint64_t));
}

cudaError_t scan_mix(const Gemm& p, const ScanMix& t, cudaStream_t stream) {
  if (!scan_mix_supported(p, t.order, t.block) || !t.se || !t.work || !t.out) return cudaErrorNotSupported;
  if (!(aligned_to(t.se, 16) && aligned_to(t.out, 16) && aligned_to(t.work, 8)))
    return cudaErrorMisalignedAddress;
  if (p.sizes.rows() == 0) return cudaSuccess;
  if (t.order != 2) return mix_of_order(p, t, stream);
  return p.dtype == Dtype::bf16 ? mix<__nv_bfloat16>(p, t, stream) : mix<__half>(p, t, stream);
}

}  // namespace pom::kernels
