// Launches whose kernels overlap the end of the one before (programmatic dependent launch) where the device
// has it. Such a kernel calls wait_for_before() before it touches memory, and let_next_start() once it has
// little left to set up: what the next one does before its own wait is all that overlaps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cuda_runtime.h>
#include <initializer_list>

namespace pom::kernels {

// All that the kernels before have written is seen after it.
__device__ __forceinline__ void wait_for_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// 10 * major + minor of the current device, asked for once a device; 0 where there is none.
inline int device_capability() {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  const bool kept = device >= 0 && device < kDevices;
  if (kept)
    if (const int capability = known[device].load(std::memory_order_relaxed)) return capability;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
    return 0;
  if (kept) known[device].store(10 * major + minor, std::memory_order_relaxed);
  return 10 * major + minor;
}

// Whether this file's kernels were built for 9.0, so that they wait there; those that a driver makes of older
// code do not.
constexpr bool built_to_wait() {
#ifdef __CUDA_ARCH_LIST__
  for (const int architecture : {__CUDA_ARCH_LIST__})
    if (architecture == 900) return true;
#endif
  return false;
}

// `cluster` blocks in a row share their memory: above 1 it must divide the grid, and needs a capability
// of 9.0.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   unsigned cluster, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = block;
  config.dynamicSmemBytes = shared, config.stream = stream;
  config.attrs = attributes, config.numAttrs = 0;
  if (built_to_wait() && device_capability() == 90) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& together = attributes[config.numAttrs++];
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim.x = cluster, together.val.clusterDim.y = 1, together.val.clusterDim.z = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace pom::kernels
