// A tile whose columns can be dealt out where there is a multiple of 32 of them.
#include "pom/kernels/product_scan_tails.cuh"

namespace pom::kernels {
namespace {

template <class In, int TN>
cudaError_t gate(const Product& p, const ScanGateTail& t, cudaStream_t stream) {
  using Tail = ScanGateTailOf<In>;
  const int tokens = static_cast<int>(p.sizes.tokens);
  const typename Tail::Params params{affine_of(p),
                                     tokens,
                                     t.block < tokens ? static_cast<int>(t.block) : tokens,
                                     static_cast<const In*>(t.prefix),
                                     t.carry,
                                     t.count,
                                     static_cast<In*>(t.out)};
  return launch_product<DealtTraits<In, TN, 1>, Tail>(p, params, stream);
}

template <class In>
cudaError_t gate_of(const Product& p, const ScanGateTail& t, cudaStream_t stream) {
  return p.sizes.outputs % 32 == 0 ? gate<In, 128>(p, t, stream) : gate<In, 144>(p, t, stream);
}

}  // namespace

cudaError_t product_scan_gate(const Product& p, const ScanGateTail& t, cudaStream_t stream) {
  if (!product_supported(p) || !t.prefix || !t.carry || !t.out || t.block < 1) return cudaErrorNotSupported;
  if (p.sizes.rows() == 0) return cudaSuccess;
  if (p.dtype == Dtype::bf16) return gate_of<__nv_bfloat16>(p, t, stream);
  if (p.dtype == Dtype::fp16) return gate_of<__half>(p, t, stream);
  return cudaErrorNotSupported;
}

}  // namespace pom::kernels
