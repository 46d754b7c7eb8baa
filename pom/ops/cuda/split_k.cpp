#include "pom/ops/cuda/split_k.h"

#include <map>
#include <mutex>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "pom/ops/cuda/launch.h"

namespace pom::ops::cuda {
namespace {

constexpr const char* kName = "split_k";
// Splits are for few tiles, so that these are enough for all; split_k() looks.
constexpr std::int64_t kCounters = 1024, kCountersBytes = kCounters * 4;

at::Tensor zeros(const at::Tensor& like) {
  return at::zeros({kCounters}, like.options().dtype(at::kInt));
}

// While a graph is captured: counters of its own, of each of its streams, because it may run beside whatever
// runs on the stream that captures it. They lie in the memory of the graph, which others may write to once it
// has run, so that clearing them is its first step. They are held until the thread captures again: in this
// graph nothing else may have their place.
at::Tensor counters_of_capture(const at::Tensor& like, cudaStream_t stream) {
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

// A stream's GEMMs run one after another, whoever launches them, and leave the counters as they were.
at::Tensor counters_of_stream(const at::Tensor& like, cudaStream_t stream) {
  using Key = std::pair<int, cudaStream_t>;
  static std::mutex mutex;
  static auto* const all = new std::map<Key, at::Tensor>;  // never taken down: CUDA may be gone by then
  const std::lock_guard lock(mutex);
  at::Tensor& counters = (*all)[{like.get_device(), stream}];
  if (!counters.defined()) counters = zeros(like);
  return counters;
}

}  // namespace

at::Tensor split_k(kernels::Gemm& gemm, Follows follows, const at::Tensor& like, cudaStream_t stream) {
  gemm.splits = {};
  const int count = kernels::gemm_splits(gemm.sizes, gemm.dtype);
  if (count == 1) return {};
  const kernels::GemmSplitBytes need = kernels::gemm_split_bytes(gemm.sizes);
  check(need.counters <= kCountersBytes, kName, ": expected at most ", kCountersBytes,
        " bytes of counters, got ", need.counters);
  at::Tensor counters =
      detail::capturing(stream) ? counters_of_capture(like, stream) : counters_of_stream(like, stream);
  gemm.splits.count = count;
  gemm.splits.counters = static_cast<std::uint32_t*>(counters.mutable_data_ptr());
  gemm.splits.counters_bytes = kCountersBytes;
  if (follows == Follows::add) return {};
  const at::Tensor sums = at::empty({need.sums}, like.options().dtype(at::kByte));
  gemm.splits.sums = sums.mutable_data_ptr(), gemm.splits.sums_bytes = need.sums;
  return sums;
}

}  // namespace pom::ops::cuda
