#include "pom/kernels/product_tails.cuh"

namespace pom::kernels {

cudaError_t product_residual(const Product& p, const ResidualTail& t, cudaStream_t stream) {
  if (!product_supported(p) || !t.x || !t.gate || t.x_dtype != Dtype::fp32) return cudaErrorNotSupported;
  if (!(aligned_to(t.x, 16) && aligned_to(t.y, 16) && aligned_to(t.gate, 8) && t.gate_stride % 2 == 0))
    return cudaErrorMisalignedAddress;
  if (p.sizes.rows() == 0) return cudaSuccess;
  return with_input(p.dtype, [&]<class In>() {
    using Tail = ResidualTailOf<In>;
    const typename Tail::Params params{
        affine_of(p),  static_cast<float*>(t.x),         t.gate,
        t.gate_stride, static_cast<int>(p.sizes.tokens), static_cast<Wide<In>*>(t.y)};
    return with_tile(tile_of(p, true, kResidualWidest), [&]<int TN, int Beside>() {
      if constexpr (TN <= kResidualWidest)
        return launch_product<DealtTraits<In, TN, Beside>, Tail>(p, params, stream);
      else
        return cudaErrorNotSupported;
    });
  });
}

}  // namespace pom::kernels
