// A tile whose columns can be dealt out where there is a multiple of 32 of them.
#include "pom/kernels/sm90/scan/scan_epilogues.cuh"

namespace pom::kernels {
namespace {

template <class In, int TN>
cudaError_t gate(const Gemm& p, const ScanGateEpilogue& t, cudaStream_t stream) {
  using Epilogue = ScanGateEpilogueOf<In>;
  const int tokens = static_cast<int>(p.sizes.tokens);
  const typename Epilogue::Params params{affine_of(p),
                                         tokens,
                                         t.block < tokens ? static_cast<int>(t.block) : tokens,
                                         static_cast<const In*>(t.prefix),
                                         t.carry,
                                         t.count,
                                         static_cast<In*>(t.out)};
  return launch_gemm<DealtTraits<In, TN, 1>, Epilogue>(p, params, stream);
}

template <class In>
cudaError_t gate_of(const Gemm& p, const ScanGateEpilogue& t, cudaStream_t stream) {
  return p.sizes.outputs % 32 == 0 ? gate<In, 128>(p, t, stream) : gate<In, 144>(p, t, stream);
}

}  // namespace

cudaError_t scan_gate(const Gemm& p, const ScanGateEpilogue& t, cudaStream_t stream) {
  if (!gemm_supported(p) || !t.prefix || !t.carry || !t.out || t.block < 1) return cudaErrorNotSupported;
  if (p.sizes.rows() == 0) return cudaSuccess;
  if (p.dtype == Dtype::bf16) return gate_of<__nv_bfloat16>(p, t, stream);
  if (p.dtype == Dtype::fp16) return gate_of<__half>(p, t, stream);
  return cudaErrorNotSupported;
}

}  // namespace pom::kernels
