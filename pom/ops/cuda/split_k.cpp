#include "pom/ops/cuda/split_k.h"

#include <map>
#include <mutex>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/prepared_weights.h"

namespace pom::ops::cuda {
namespace {

constexpr const char* kName = "split_k";
// Splits are for few tiles, so that these are enough for all; split_k() looks.
constexpr std::int64_t kCounters = 1024, kCountersBytes = kCounters * 4;

at::Tensor zeros(const at::Tensor& like) {
  return at::zeros({kCounters}, like.options().dtype(at::kInt));
}

// While we capture a graph (graphs.h): counters of its own, of each of its streams, because it may run beside
// whatever runs on the stream that captures it. They lie in the memory of the graph, which others may write
// to once it has run, so that clearing them is its first step. They are held until the thread captures again:
// in this graph nothing else may have their place.
at::Tensor counters_of_graph(const at::Tensor& like, cudaStream_t stream) {
  struct Held {
    unsigned long long capture = 0;
    std::map<cudaStream_t, at::Tensor> counters;
  };
  thread_local Held held;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  detail::check_launch(kName, cudaStreamGetCaptureInfo(stream, &status, &capture));
  if (capture != held.capture) held = {capture, {}};
  at::Tensor& counters = held.counters[stream];
  if (!counters.defined()) counters = zeros(like);
  return counters;
}

// A stream's GEMMs run one after another, whoever launches them, and leave the counters as they were. They
// are not of torch's allocator: a stream's first GEMM may come in the warm-up of somebody's graphs, which
// refuse what outlives a call in their pool.
std::uint32_t* counters_of_stream(const at::Tensor& like, cudaStream_t stream) {
  using Key = std::pair<int, cudaStream_t>;
  static std::mutex mutex;
  static auto* const all = new std::map<Key, void*>;  // never taken down: CUDA may be gone by then
  const std::lock_guard lock(mutex);
  void*& counters = (*all)[{like.get_device(), stream}];
  if (counters == nullptr) {
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);  // of other threads
    void* fresh = nullptr;
    detail::check_launch(kName, cudaMalloc(&fresh, kCountersBytes));
    detail::check_launch(kName, cudaMemsetAsync(fresh, 0, kCountersBytes, stream));
    counters = fresh;
  }
  return static_cast<std::uint32_t*>(counters);
}

}  // namespace

std::vector<at::Tensor> split_k(kernels::Gemm& gemm, Follows follows, const at::Tensor& like,
                                cudaStream_t stream) {
  gemm.splits = {};
  const int count = kernels::gemm_splits(gemm.sizes, gemm.dtype);
  if (count == 1) return {};
  const kernels::GemmSplitBytes need = kernels::gemm_split_bytes(gemm.sizes);
  check(need.counters <= kCountersBytes, kName, ": expected at most ", kCountersBytes,
        " bytes of counters, got ", need.counters);
  std::vector<at::Tensor> memory;
  gemm.splits.count = count, gemm.splits.counters_bytes = kCountersBytes;
  if (detail::capturing(stream)) {  // in somebody else's graph nothing of ours outlives the call
    memory.push_back(PreparedWeights::current().frozen() ? counters_of_graph(like, stream) : zeros(like));
    gemm.splits.counters = static_cast<std::uint32_t*>(memory[0].mutable_data_ptr());
  } else {
    gemm.splits.counters = counters_of_stream(like, stream);
  }
  if (follows == Follows::add) return memory;
  memory.push_back(at::empty({need.sums}, like.options().dtype(at::kByte)));
  gemm.splits.sums = memory.back().mutable_data_ptr(), gemm.splits.sums_bytes = need.sums;
  return memory;
}

}  // namespace pom::ops::cuda
