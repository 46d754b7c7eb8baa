#include "pom/kernels/sm90/gemm/epilogue_gate.cuh"

namespace pom::kernels {
namespace {

template <Keeps keeps, GateRuns kRuns, class In, class Out>
cudaError_t gate_in(const Gemm& p, const GateEpilogue& t, cudaStream_t stream) {
  using Epilogue = GateEpilogueOf<In, Out, keeps, kRuns>;
  const typename Epilogue::Params params{affine_of(p),
                                         run_shape(p.sizes, t.runs),
                                         t.H,
                                         static_cast<Out*>(t.out),
                                         static_cast<Wide<In>*>(t.before),
                                         t.out_scale,
                                         t.partial};
  return with_tile(tile_of(p, true), [&]<int TN, int Beside>() {
    return launch_gemm<DealtTraits<In, TN, Beside>, Epilogue>(p, params, stream);
  });
}

template <class In, class Out>
cudaError_t gate(const Gemm& p, const GateEpilogue& t, cudaStream_t stream) {
  const GateRuns runs = gate_runs(p.sizes, t.runs);
  if (runs == GateRuns::one && !t.before)
    return gate_in<Keeps::nothing, GateRuns::one, In, Out>(p, t, stream);
  if (runs == GateRuns::two && !t.before)
    return gate_in<Keeps::nothing, GateRuns::two, In, Out>(p, t, stream);
  if constexpr (!kScaled<In>)
    if (runs == GateRuns::one) return gate_in<Keeps::before, GateRuns::one, In, Out>(p, t, stream);
  return gate_in<Keeps::any, GateRuns::any, In, Out>(p, t, stream);
}

}  // namespace

cudaError_t gemm_gate(const Gemm& p, const GateEpilogue& t, cudaStream_t stream) {
  if (!gemm_supported(p) || !t.out ||
      !(t.partial ? gate_takes_sums(p.sizes, t.runs) && p.dtype != Dtype::e4m3 : t.H != nullptr))
    return cudaErrorNotSupported;
  if (!(aligned_to(t.out, 16) && aligned_to(t.before, 16) && aligned_to(t.H, 8)))
    return cudaErrorMisalignedAddress;
  if (p.sizes.rows() == 0) return cudaSuccess;
  if (p.dtype == Dtype::bf16 && t.out_dtype == Dtype::bf16)
    return gate<__nv_bfloat16, __nv_bfloat16>(p, t, stream);
  if (p.dtype == Dtype::fp16 && t.out_dtype == Dtype::fp16) return gate<__half, __half>(p, t, stream);
  if (p.dtype != Dtype::e4m3) return cudaErrorNotSupported;
  if (t.out_dtype == Dtype::e4m3 && t.out_scale) return gate<__nv_fp8_e4m3, __nv_fp8_e4m3>(p, t, stream);
  return cudaErrorNotSupported;
}

}  // namespace pom::kernels
