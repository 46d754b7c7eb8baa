// Private to the chain: its kernels, a file for each dtype, because they take long to compile.
#pragma once

#include <cuda_runtime_api.h>

namespace pom::kernels {

struct ChainShape;
cudaError_t launch_chain_bf16(const ChainShape& shape, int order, cudaStream_t stream);
cudaError_t launch_chain_e4m3(const ChainShape& shape, int order, cudaStream_t stream);

}  // namespace pom::kernels
