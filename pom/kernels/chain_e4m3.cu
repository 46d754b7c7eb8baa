#include "pom/kernels/chain_dispatch.cuh"

namespace pom::kernels {

cudaError_t launch_chain_e4m3(const ChainShape& shape, int order, cudaStream_t stream) {
  return launch_chain<__nv_fp8_e4m3>(shape, order, stream);
}

}  // namespace pom::kernels
