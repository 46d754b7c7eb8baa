#include "pom/kernels/sm90/gemm/epilogue_residual.cuh"

namespace pom::kernels {

cudaError_t gemm_residual(const Gemm& p, const ResidualEpilogue& t, cudaStream_t stream) {
  if (!gemm_supported(p) || !t.x || !t.gate) return cudaErrorNotSupported;
  if (!(aligned_to(t.x, 16) && aligned_to(t.gate, 8) && t.gate_stride % 2 == 0))
    return cudaErrorMisalignedAddress;
  if (split(p) && !splits_fit(p, Joins::results)) return cudaErrorInvalidValue;
  if (p.sizes.rows() == 0) return cudaSuccess;
  return with_input(p.dtype, [&]<class In>() {
    using Epilogue = ResidualEpilogueOf<In>;
    const typename Epilogue::Params params{affine_of(p), t.x, t.gate, t.gate_stride,
                                           static_cast<int>(p.sizes.tokens)};
    // Any N would do for any tile; but those who choose and measure ask gemm_tile_fits().
    return with_tile(tile_of(p, true, kAnyWidth, p.splits.count), [&]<int TN, int Beside>() {
      using Traits = GemmTraits<In, kTileRows, TN, Beside, false>;
      return split(p) ? launch_gemm<Traits, Epilogue, Joins::results>(p, params, stream)
                      : launch_gemm<Traits, Epilogue>(p, params, stream);
    });
  });
}

}  // namespace pom::kernels
