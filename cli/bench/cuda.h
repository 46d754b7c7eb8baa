// What benchmarks need of CUDA itself. A build without our kernels (no_cuda.cpp) has the same functions,
// which then do what is right for a processor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace pom::cli {

struct Gpu {
  std::string name;     // "NVIDIA H200"; empty where nothing is known
  std::string runtime;  // of CUDA, "12.8"
};

// The work as one CUDA graph: called once before, so that libraries choose their algorithms, then captured.
std::function<void()> captured(const std::function<void()>& work);

Gpu gpu_of(const c10::Device& device);

// Memory that torch keeps for later goes back to the GPU.
void give_back_memory(const c10::Device& device);
// Bytes in use; from here on peak_bytes() looks for the largest.
std::int64_t start_peak(const c10::Device& device);
std::int64_t peak_bytes(const c10::Device& device);
// All the memory there is.
std::int64_t total_bytes(const c10::Device& device);

// Waits until the device has done what it was given.
inline void synchronize(const c10::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.index());
}

}  // namespace pom::cli
