#include "cli/bench/cuda.h"

#include <cuda_runtime_api.h>
#include <memory>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "pom/base/error.h"
#include "pom/ops/cuda/prepared_weights.h"

namespace pom::cli {
namespace {

// A capture that fails is ended all the same: the stream would be of no use to those who come after.
void capture(at::cuda::CUDAGraph& graph, const std::function<void()>& work) {
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    try {
      graph.capture_end();
    } catch (const std::exception&) {  // what went wrong first is what is told
    }
    throw;
  }
  graph.capture_end();
}

std::int64_t bytes_now(const c10::Device& device, bool peak) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  const auto& allocated = stats.allocated_bytes[0];  // of all pools together
  return peak ? allocated.peak : allocated.current;
}

}  // namespace

std::function<void()> captured(const std::function<void()>& work) {
  const auto graph = std::make_shared<at::cuda::CUDAGraph>();
  // Weights that kernels want in another form are brought into it once, not whenever the graph runs.
  const auto weights = std::make_shared<ops::PreparedWeights>(ops::PreparedWeights::Kind::frozen);
  {
    const ops::PreparedWeights::Use use(*weights);
    const c10::cuda::CUDAStream stream =
        c10::cuda::getStreamFromPool();  // the default one cannot be captured
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard guard(stream);
    work();
    stream.synchronize();
    capture(*graph, work);
  }
  // What the graph works on lives as long as the work itself.
  return [work, weights, graph] { graph->replay(); };
}

Gpu gpu_of(const c10::Device& device) {
  if (!device.is_cuda()) return {};
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  int version = 0;
  C10_CUDA_CHECK(cudaRuntimeGetVersion(&version));
  return {properties.name, detail::concat(version / 1000, ".", version % 1000 / 10)};
}

void give_back_memory(const c10::Device& device) {
  if (!device.is_cuda()) return;
  c10::cuda::device_synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
}

std::int64_t start_peak(const c10::Device& device) {
  if (!device.is_cuda()) return 0;
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
  return bytes_now(device, false);
}

std::int64_t peak_bytes(const c10::Device& device) {
  return device.is_cuda() ? bytes_now(device, true) : 0;
}

std::int64_t total_bytes(const c10::Device& device) {
  if (!device.is_cuda()) return 0;
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(total);
}

}  // namespace pom::cli
