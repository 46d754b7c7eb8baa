#include "pom/ops/cuda/device.h"

#include <cuda_runtime_api.h>

#include <c10/cuda/CUDAGuard.h>

namespace pom::ops::cuda {

bool has_kernels() {
  return true;
}

std::int64_t free_bytes(c10::Device device) {
  if (!device.is_cuda()) return 0;
  const c10::cuda::CUDAGuard guard(device);
  std::size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<std::int64_t>(free) : 0;
}

std::string device_name(c10::Device device) {
  cudaDeviceProp properties;
  if (!device.is_cuda() || cudaGetDeviceProperties(&properties, device.index()) != cudaSuccess) return "";
  return properties.name;
}

}  // namespace pom::ops::cuda
