// Order 2 has every tile but that on which both warpgroups work: a thread of it has half of the rows that it
// adds up in the others, which would change the bits. The other orders have the widest of these, which holds
// whole features of all of them.
#include "pom/kernels/sm90/gemm/epilogue_sums.cuh"

namespace pom::kernels {
namespace {

template <class In, int Order, int TN, int Beside>
cudaError_t sums(const Gemm& p, const SumsEpilogue& t, cudaStream_t stream) {
  static_assert(TN % sums_block(Order) == 0);
  using Epilogue = SumsEpilogueOf<In, Order>;
  const typename Epilogue::Params params{affine_of(p), run_shape(p.sizes, t.runs), t.visible, t.partial};
  return launch_gemm<GemmTraits<In, kTileRows, TN, Beside, false>, Epilogue>(p, params, stream);
}

}  // namespace

template <class In>
cudaError_t sums_of_order(const Gemm& p, const SumsEpilogue& t, cudaStream_t stream) {
  switch (t.order) {
    case 1:
      return sums<In, 1, 192, 1>(p, t, stream);
    case 2:
      return with_tile(tile_of(p, false, 192), [&]<int TN, int Beside>() {
        if constexpr (TN <= 192)
          return sums<In, 2, TN, Beside>(p, t, stream);
        else
          return cudaErrorInvalidValue;  // tile_of() gives none
      });
    case 3:
      return sums<In, 3, 192, 1>(p, t, stream);
    case 4:
      return sums<In, 4, 192, 1>(p, t, stream);
    case 6:
      return sums<In, 6, 192, 1>(p, t, stream);
    case 8:
      return sums<In, 8, 192, 1>(p, t, stream);
    default:
      return cudaErrorNotSupported;
  }
}

cudaError_t gemm_sums(const Gemm& p, const SumsEpilogue& t, cudaStream_t stream) {
  if (!gemm_supported(p) || !t.partial || !sums_order(t.order)) return cudaErrorNotSupported;
  if (p.sizes.outputs % (8 * t.order) != 0) return cudaErrorNotSupported;
  if (p.sizes.rows() == 0) return cudaSuccess;
  return with_input(p.dtype, [&]<class In>() { return sums_of_order<In>(p, t, stream); });
}

}  // namespace pom::kernels
