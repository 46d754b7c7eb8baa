// These epilogues read a tensor of the tile and hold sums beside the accumulators: tiles of 128 columns at
// most.
#include "pom/kernels/sm90/gemm/epilogues_backward.cuh"

namespace pom::kernels {
namespace {

constexpr int kWidest = 128, kUnit = 32;

template <class In>
cudaError_t gate_backward(const Gemm& p, const GateBackwardEpilogue& t, cudaStream_t stream) {
  using Epilogue = GateBackwardEpilogueOf<In>;
  const typename Epilogue::Params params{static_cast<int>(p.sizes.tokens),
                                         static_cast<const In*>(t.se),
                                         t.H,
                                         static_cast<In*>(t.dse),
                                         static_cast<In*>(t.gated),
                                         t.dH,
                                         t.dse_sums};
  return launch_among<In, Epilogue, kWidest, kUnit>(tile_among(p, kWidest, kUnit), p, params, stream);
}

template <class In>
cudaError_t gelu_backward(const Gemm& p, const GeluBackwardEpilogue& t, cudaStream_t stream) {
  using Epilogue = GeluBackwardEpilogueOf<In>;
  const typename Epilogue::Params params{static_cast<const In*>(t.before), static_cast<In*>(t.dbefore),
                                         static_cast<In*>(t.after), t.dbefore_sums};
  return launch_among<In, Epilogue, kWidest, kUnit>(tile_among(p, kWidest, kUnit), p, params, stream);
}

}  // namespace

int64_t gemm_row_tiles(int64_t rows) {
  return (rows + kTileRows - 1) / kTileRows;
}

cudaError_t gemm_gate_backward(const Gemm& p, const GateBackwardEpilogue& t, cudaStream_t stream) {
  if (!training_gemm(p) || p.bias || !t.se || !t.H || !t.dse || !t.dH) return cudaErrorNotSupported;
  for (const void* pointer : {t.se, static_cast<const void*>(t.H), static_cast<const void*>(t.dse),
                              static_cast<const void*>(t.gated)})
    if (!aligned_to_16(pointer)) return cudaErrorNotSupported;
  if (p.sizes.rows() == 0) return cudaSuccess;
  return with_half(p.dtype, [&]<class In>() { return gate_backward<In>(p, t, stream); });
}

cudaError_t gemm_gelu_backward(const Gemm& p, const GeluBackwardEpilogue& t, cudaStream_t stream) {
  if (!training_gemm(p) || p.bias || !t.before || !t.dbefore) return cudaErrorNotSupported;
  for (const void* pointer :
       {t.before, static_cast<const void*>(t.dbefore), static_cast<const void*>(t.after)})
    if (!aligned_to_16(pointer)) return cudaErrorNotSupported;
  if (p.sizes.rows() == 0) return cudaSuccess;
  return with_half(p.dtype, [&]<class In>() { return gelu_backward<In>(p, t, stream); });
}

}  // namespace pom::kernels
