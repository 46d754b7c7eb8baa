#include "pom/kernels/sm90/network/block_stack_dispatch.cuh"

namespace pom::kernels {

cudaError_t launch_block_stack_e4m3(const BlockStackShape& shape, int order, cudaStream_t stream) {
  return launch_block_stack<__nv_fp8_e4m3>(shape, order, stream);
}

}  // namespace pom::kernels
