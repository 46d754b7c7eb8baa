#include "pom/kernels/sm90/gemm/epilogue_store.cuh"

namespace pom::kernels {
namespace {

template <Keeps keeps, Joins joins, class In, class Out>
cudaError_t store_in(const Gemm& p, const StoreEpilogue& t, cudaStream_t stream) {
  using Epilogue = StoreEpilogueOf<In, Out, keeps>;
  const typename Epilogue::Params params{affine_of(p), static_cast<Out*>(t.out),
                                         static_cast<Wide<In>*>(t.before), t.out_scale,
                                         t.activation == Activation::gelu};
  return with_tile(tile_of(p, true, kAnyWidth, joins == Joins::none ? 1 : p.splits.count),
                   [&]<int TN, int Beside>() {
                     return launch_gemm<DealtTraits<In, TN, Beside>, Epilogue, joins>(p, params, stream);
                   });
}

template <class In, class Out>
cudaError_t store(const Gemm& p, const StoreEpilogue& t, cudaStream_t stream) {
  if (t.before) return store_in<Keeps::before, Joins::none, In, Out>(p, t, stream);
  return split(p) ? store_in<Keeps::nothing, Joins::sums, In, Out>(p, t, stream)
                  : store_in<Keeps::nothing, Joins::none, In, Out>(p, t, stream);
}

}  // namespace

cudaError_t gemm_store(const Gemm& p, const StoreEpilogue& t, cudaStream_t stream) {
  if (!gemm_supported(p) || !t.out) return cudaErrorNotSupported;
  if (!(aligned_to(t.out, 16) && aligned_to(t.before, 16))) return cudaErrorMisalignedAddress;
  if (!t.before && split(p) && !splits_fit(p, Joins::sums)) return cudaErrorInvalidValue;
  if (p.sizes.rows() == 0) return cudaSuccess;
  if (p.dtype == Dtype::bf16 && t.out_dtype == Dtype::bf16)
    return store<__nv_bfloat16, __nv_bfloat16>(p, t, stream);
  if (p.dtype == Dtype::fp16 && t.out_dtype == Dtype::fp16) return store<__half, __half>(p, t, stream);
  if (p.dtype != Dtype::e4m3) return cudaErrorNotSupported;
  if (t.out_dtype == Dtype::bf16) return store<__nv_fp8_e4m3, __nv_bfloat16>(p, t, stream);
  if (t.out_dtype == Dtype::e4m3 && t.out_scale) return store<__nv_fp8_e4m3, __nv_fp8_e4m3>(p, t, stream);
  return cudaErrorNotSupported;
}

}  // namespace pom::kernels
