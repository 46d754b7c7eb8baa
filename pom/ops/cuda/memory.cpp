#include "pom/ops/cuda/memory.h"

#include <cuda_runtime_api.h>

#include <c10/cuda/CUDAGuard.h>

namespace pom::ops::cuda {

std::int64_t free_bytes(c10::Device device) {
  if (!device.is_cuda()) return 0;
  const c10::cuda::CUDAGuard guard(device);
  std::size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<std::int64_t>(free) : 0;
}

}  // namespace pom::ops::cuda
