// The launch of a block stack's kernel: all its blocks must be on the processors at once, which a cooperative
// launch promises.
#pragma once

#include "pom/kernels/sm90/network/block_stack_kernel.cuh"
#include "pom/kernels/sm90/network/block_stack_launch.h"

namespace pom::kernels {

template <class In, int TN, int Order>
cudaError_t launch_block_stack_kernel(const BlockStackShape& s, cudaStream_t stream) {
  constexpr int kShared = kBlockStackShared<In, TN>;
  const auto kernel = block_stack_kernel<In, TN, Order>;
  static std::atomic<int> known[kMaxDevices];
  int clusters = 0;
  if (const cudaError_t e =
          clusters_at_once(reinterpret_cast<const void*>(kernel), kShared, kAbove, known, &clusters);
      e != cudaSuccess)
    return e;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = kAbove, attributes[0].val.clusterDim.y = 1,
  attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(kAbove * (s.units < clusters ? s.units : clusters)));
  config.blockDim = dim3(kGemmThreads), config.dynamicSmemBytes = kShared;
  config.stream = stream, config.attrs = attributes, config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, s);
}

template <class In>
cudaError_t launch_block_stack(const BlockStackShape& s, int order, cudaStream_t stream) {
  switch (order) {
    case 2:
      return launch_block_stack_kernel<In, kBlockStackColumns, 2>(s, stream);
    case 3:
      return launch_block_stack_kernel<In, kBlockStackColumns, 3>(s, stream);
    case 4:
      return launch_block_stack_kernel<In, kBlockStackColumns, 4>(s, stream);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace pom::kernels
