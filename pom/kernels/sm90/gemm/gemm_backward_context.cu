// A tile holds whole units of 32 features with all their factors.
#include "pom/kernels/sm90/gemm/epilogues_backward.cuh"

namespace pom::kernels {
namespace {

template <class In, int Order>
cudaError_t context(const Gemm& p, const ContextEpilogue& t, cudaStream_t stream) {
  using Epilogue = ContextEpilogueOf<In, Order>;
  constexpr int kWidest = 192, kUnit = 32 * Order;
  const typename Epilogue::Params params{p.bias, static_cast<int>(p.sizes.tokens), t.partial,
                                         static_cast<In*>(t.ho)};
  return launch_among<In, Epilogue, kWidest, kUnit>(tile_among(p, kWidest, kUnit), p, params, stream);
}

template <class In>
cudaError_t context_of_order(const Gemm& p, const ContextEpilogue& t, cudaStream_t stream) {
  switch (t.order) {
    case 1:
      return context<In, 1>(p, t, stream);
    case 2:
      return context<In, 2>(p, t, stream);
    case 3:
      return context<In, 3>(p, t, stream);
    case 4:
      return context<In, 4>(p, t, stream);
    case 6:
      return context<In, 6>(p, t, stream);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace

bool context_order(int order, int64_t D) {
  return ((order >= 1 && order <= 4) || order == 6) && D >= 32 && D % 32 == 0;
}
int64_t context_row(int64_t r, int order, int64_t D) {
  return context_row_of(r, order, D);
}

cudaError_t gemm_context(const Gemm& p, const ContextEpilogue& t, cudaStream_t stream) {
  if (!training_gemm(p) || !t.partial || !t.ho || !aligned_to_16(t.ho)) return cudaErrorNotSupported;
  if (t.order < 1 || p.sizes.outputs % t.order != 0 || !context_order(t.order, p.sizes.outputs / t.order))
    return cudaErrorNotSupported;
  if (p.sizes.rows() == 0) return cudaSuccess;
  return with_half(p.dtype, [&]<class In>() { return context_of_order<In>(p, t, stream); });
}

}  // namespace pom::kernels
