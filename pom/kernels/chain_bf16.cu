#include "pom/kernels/chain_dispatch.cuh"

namespace pom::kernels {

cudaError_t launch_chain_bf16(const ChainShape& shape, int order, cudaStream_t stream) {
  return launch_chain<__nv_bfloat16>(shape, order, stream);
}

}  // namespace pom::kernels
