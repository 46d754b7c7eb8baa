#include "pom/kernels/product_tails.cuh"

namespace pom::kernels {

cudaError_t product_residual(const Product& p, const ResidualTail& t, cudaStream_t stream) {
  if (!product_supported(p) || !t.x || !t.gate) return cudaErrorNotSupported;
  if (!(aligned_to(t.x, 16) && aligned_to(t.gate, 8) && t.gate_stride % 2 == 0))
    return cudaErrorMisalignedAddress;
  if (p.sizes.rows() == 0) return cudaSuccess;
  return with_input(p.dtype, [&]<class In>() {
    using Tail = ResidualTailOf<In>;
    const typename Tail::Params params{affine_of(p), t.x, t.gate, t.gate_stride,
                                       static_cast<int>(p.sizes.tokens)};
    // Any N would do for any tile; but those who choose and measure ask product_tile_fits().
    return with_tile(tile_of(p, true), [&]<int TN, int Beside>() {
      return launch_product<ProductTraits<In, kTileRows, TN, Beside, false>, Tail>(p, params, stream);
    });
  });
}

}  // namespace pom::kernels
