#include "pom/kernels/product_tails.cuh"

namespace pom::kernels {

cudaError_t product_residual(const Product& p, const ResidualTail& t, cudaStream_t stream) {
  if (!product_supported(p) || !t.x || !t.gate || t.x_dtype != Dtype::fp32) return cudaErrorNotSupported;
  if (p.sizes.rows() == 0) return cudaSuccess;
  return with_input(p.dtype, [&]<class In>() {
    using Tail = ResidualTailOf<In>;
    const typename Tail::Params params{
        affine_of(p),  static_cast<float*>(t.x),         t.gate,
        t.gate_stride, static_cast<int>(p.sizes.tokens), static_cast<Wide<In>*>(t.y)};
    return with_tile(tile_of(p, true), [&]<int TM, int TN>() {
      return launch_product<DealtTraits<In, TM, TN>, Tail>(p, params, stream);
    });
  });
}

}  // namespace pom::kernels
