// torch's CUDAGraph on the runtime's graphs. What is captured runs at once too, so that results have their
// shapes, and what it changed is put back: as on a GPU a capture has no effect.
#include "tests/emulated/machine.h"
#include "tests/emulated/torch/emulated.h"
#include <memory>
#include <unordered_map>

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>

namespace emulated {

bool capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::Active;
}

void record(std::function<void()> work) {
  C10_CUDA_CHECK(submit(c10::cuda::getCurrentCUDAStream(), std::move(work)));
}

namespace {

using Images = std::unordered_map<const void*, MemoryImage>;  // of captures that go on
Images& images() {
  static Images all;
  return all;
}

}  // namespace
}  // namespace emulated

namespace at::cuda {

namespace allocator = c10::cuda::CUDACachingAllocator;

MempoolId_t graph_pool_handle() {
  static std::atomic<c10::CaptureId_t> next = 1;
  return {0, next++};
}

CUDAGraph::CUDAGraph(bool keep_graph) : capture_stream_(getCurrentCUDAStream()), keep_graph_(keep_graph) {}
CUDAGraph::~CUDAGraph() {
  reset();
}

void CUDAGraph::capture_begin(MempoolId_t pool, cudaStreamCaptureMode mode) {
  static std::atomic<c10::CaptureId_t> next = 1;
  TORCH_CHECK(!has_graph_exec_, "this CUDAGraph has been captured already");
  capture_stream_ = getCurrentCUDAStream();
  capture_dev_ = c10::cuda::current_device();
  TORCH_CHECK(capture_stream_ != getDefaultCUDAStream(),
              "CUDA graphs must be captured on a non-default stream");
  mempool_id_ = pool == MempoolId_t{0, 0} ? MempoolId_t{next++, 0} : pool;
  C10_CUDA_CHECK(cudaStreamBeginCapture(capture_stream_, mode));
  emulated::images().try_emplace(this);
  allocator::beginAllocateToPool(capture_dev_, mempool_id_,
                                 [stream = capture_stream_.stream()](cudaStream_t s) { return s == stream; });
}

void CUDAGraph::capture_end() {
  TORCH_CHECK(capture_stream_ == getCurrentCUDAStream(), "Capture must end on the same stream it began on.");
  const cudaError_t status = cudaStreamEndCapture(capture_stream_, &graph_);
  allocator::endAllocateToPool(capture_dev_, mempool_id_);
  emulated::images().at(this).put_back();
  emulated::images().erase(this);
  capture_ended_ = true;
  C10_CUDA_CHECK(status);
  has_graph_ = true;
  C10_CUDA_CHECK(cudaGraphInstantiate(&graph_exec_, graph_, 0));
  has_graph_exec_ = true;
}

void CUDAGraph::replay() {
  TORCH_CHECK(has_graph_exec_, "Called CUDAGraph::replay without a preceding successful capture.");
  C10_CUDA_CHECK(cudaGraphLaunch(graph_exec_, getCurrentCUDAStream()));
}

void CUDAGraph::reset() {
  if (capture_ended_) allocator::releasePool(capture_dev_, mempool_id_);
  if (has_graph_exec_) C10_CUDA_CHECK_WARN(cudaGraphExecDestroy(graph_exec_));
  if (has_graph_) C10_CUDA_CHECK_WARN(cudaGraphDestroy(graph_));
  capture_ended_ = has_graph_exec_ = has_graph_ = false;
}

MempoolId_t CUDAGraph::pool() {
  TORCH_CHECK(capture_ended_, "Called CUDAGraph::pool() without a preceding successful capture.");
  return mempool_id_;
}

}  // namespace at::cuda
