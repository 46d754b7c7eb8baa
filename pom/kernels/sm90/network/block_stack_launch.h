// Private to the block stack: its kernels, a file for each dtype, because they take long to compile.
#pragma once

#include <cuda_runtime_api.h>

namespace pom::kernels {

struct BlockStackShape;
cudaError_t launch_block_stack_bf16(const BlockStackShape& shape, int order, cudaStream_t stream);
cudaError_t launch_block_stack_e4m3(const BlockStackShape& shape, int order, cudaStream_t stream);

}  // namespace pom::kernels
