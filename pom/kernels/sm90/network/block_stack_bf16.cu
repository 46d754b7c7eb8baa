#include "pom/kernels/sm90/network/block_stack_dispatch.cuh"

namespace pom::kernels {

cudaError_t launch_block_stack_bf16(const BlockStackShape& shape, int order, cudaStream_t stream) {
  return launch_block_stack<__nv_bfloat16>(shape, order, stream);
}

}  // namespace pom::kernels
