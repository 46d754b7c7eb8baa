// Orders other than 2, whose weights come in the order of gemm_sums.
#include "pom/kernels/sm90/scan/scan_mix.cuh"

namespace pom::kernels {
namespace {

template <class In>
cudaError_t mix(const Gemm& p, const ScanMix& t, cudaStream_t stream) {
  switch (t.order) {
    case 1:
      return launch_mix<In, 1, 1>(p, t, stream);
    case 3:
      return launch_mix<In, 3, 1>(p, t, stream);
    case 4:
      return launch_mix<In, 4, 1>(p, t, stream);
    case 6:
      return launch_mix<In, 6, 1>(p, t, stream);
    case 8:
      return launch_mix<In, 8, 1>(p, t, stream);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace

cudaError_t mix_of_order(const Gemm& p, const ScanMix& t, cudaStream_t stream) {
  return p.dtype == Dtype::bf16 ? mix<__nv_bfloat16>(p, t, stream) : mix<__half>(p, t, stream);
}

}  // namespace pom::kernels
