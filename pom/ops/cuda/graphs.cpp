#include "pom/ops/cuda/graphs.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include "pom/base/error.h"
#include "pom/ops/cuda/prepared_weights.h"
#include "pom/ops/weight_copies.h"

namespace pom::ops::cuda {
namespace {

using Graph = at::cuda::CUDAGraph;
using Pool = decltype(at::cuda::graph_pool_handle());

std::string_view graphs_setting() {
  static const std::string setting = [] {
    const char* value = std::getenv("POM_GRAPHS");
    return std::string(value == nullptr ? "" : value);
  }();
  return setting;
}

bool capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

// A capture that broke off leaves a stream that records, an allocator that serves the graph's pool, and an
// error that the next call would find. Whether the graph can go.
bool clean_up(Graph& graph, c10::DeviceIndex device, const Pool& pool) {
  const auto attempt = [](const auto& step) {
    try {
      step();
      return true;
    } catch (const std::exception&) {
      return false;  // there was nothing to undo
    }
  };
  const bool ended = attempt([&] { check(capturing(), "not begun"), graph.capture_end(); });
  if (!ended)
    attempt([&] {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
      c10::cuda::CUDACachingAllocator::releasePool(device, pool);
    });
  static_cast<void>(cudaGetLastError());
  return ended;
}

// What `evaluate` asks of the current stream, which must not be the default one; null where that cannot be
// captured.
std::unique_ptr<Graph> capture(const std::function<void()>& evaluate, c10::DeviceIndex device,
                               const Pool& pool) {
  auto graph = std::make_unique<Graph>();
  try {
    // Other threads may go on allocating.
    graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    evaluate();
    graph->capture_end();
    return graph;
  } catch (const std::exception&) {
    // One that did not end may still be asked for its stream by torch's allocators: it stays.
    if (!clean_up(*graph, device, pool)) static_cast<void>(graph.release());
    if (graphs_setting() == "always") throw;
    return nullptr;
  }
}

class Evaluations final : public GraphedEvaluations {
 public:
  Evaluations(c10::Device device, GraphWeights weights) : device_(device) {
    if (weights == GraphWeights::frozen) prepared_.emplace(ops::PreparedWeights::Kind::frozen);
  }
  ~Evaluations() override { wait(); }

  void run(int key, const std::function<void()>& evaluate) override {
    const c10::cuda::CUDAGuard guard(device_);
    if (graphs_setting() == "0" || capturing()) return run_once(evaluate);
    const auto found = graphs_.find(key);
    if (found == graphs_.end()) return run_first(key, evaluate);
    if (found->second == nullptr) return run_once(evaluate);
    if (!prepared_) ops::WeightCopies::refresh_all();  // which the graph reads and does not look at
    found->second->replay();
  }

  void run_once(const std::function<void()>& evaluate) override {
    const c10::cuda::CUDAGuard guard(device_);
    const Copies copies(prepared_);
    evaluate();
  }

  void drop() override {
    if (graphs_.empty()) return;
    wait();
    graphs_.clear();
    pool_ = at::cuda::graph_pool_handle();
  }

 private:
  // On a stream of its own, where capturing is allowed: libraries set themselves up for a stream when they
  // first see it, which must not happen in a capture. The result of this evaluation counts.
  void run_first(int key, const std::function<void()>& evaluate) {
    const Copies copies(prepared_);
    c10::cuda::getCurrentCUDAStream().synchronize();
    if (!side_) side_ = c10::cuda::getStreamFromPool(false, device_.index());
    const c10::cuda::CUDAStreamGuard on_side(*side_);
    evaluate();
    side_->synchronize();
    // The activations of training are most of its memory: the graph takes it again.
    if (!prepared_) c10::cuda::CUDACachingAllocator::emptyCache();
    std::unique_ptr<Graph> graph = capture(evaluate, device_.index(), pool_);
    if (graph == nullptr) pool_ = at::cuda::graph_pool_handle();
    graphs_[key] = std::move(graph);
  }

  void wait() const {
    try {
      const c10::cuda::CUDAGuard guard(device_);
      static_cast<void>(cudaDeviceSynchronize());
    } catch (const std::exception&) {
      // The device is gone, and with it whatever was running: there is nothing to wait for.
    }
  }

  using MaybePreparedWeight = std::optional<ops::PreparedWeights>;
  struct Copies {  // of the weights: ours, or where there are none those of all
    explicit Copies(MaybePreparedWeight& prepared) {
      if (prepared) use.emplace(*prepared);
    }
    std::optional<ops::PreparedWeights::Use> use;
  };

  c10::Device device_;
  MaybePreparedWeight prepared_;
  std::optional<c10::cuda::CUDAStream> side_;
  // Graphs share their working memory: no two run at a time, and nothing in it lives on after one.
  Pool pool_ = at::cuda::graph_pool_handle();
  std::map<int, std::unique_ptr<Graph>> graphs_;  // null: could not be captured
};

}  // namespace

std::unique_ptr<GraphedEvaluations> graphs_on(c10::Device device, GraphWeights weights) {
  if (!device.is_cuda()) return nullptr;
  return std::make_unique<Evaluations>(device, weights);
}

}  // namespace pom::ops::cuda
