// The device's memory: torch's CUDA allocator on the runtime's cudaMalloc. As torch's own it gives a graph
// memory of a pool, which stays where it is until the graph goes, and counts what is in use. What is given
// out is full of NaN, so that nothing is read that nobody has written.
#include "tests/emulated/torch/emulated.h"
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>

namespace emulated {
namespace {

using c10::DataPtr;
using c10::MempoolId_t;
namespace cached = c10::cuda::CUDACachingAllocator;

constexpr std::size_t kGranule = 512;  // torch's own
constexpr MempoolId_t kNoPool{0, 0};
constexpr int kNaN = 0xff;  // in every byte: of fp64 to e4m3 a NaN

thread_local bool on_device = false;

struct Block {
  std::size_t bytes;
  MempoolId_t pool;
};
struct Pool {
  int uses = 0;
  std::multimap<std::size_t, void*> free;
};
struct Route {
  MempoolId_t pool;
  std::function<bool(cudaStream_t)> takes;
};

#define POM_NOT_EMULATED(name) TORCH_CHECK(false, "the emulated GPU's allocator has no ", name)

class Memory final : public cached::CUDAAllocator {
 public:
  void* raw_alloc_with_stream(std::size_t asked, cudaStream_t stream) override {
    if (asked == 0) return nullptr;
    const std::size_t bytes = (asked + kGranule - 1) / kGranule * kGranule;
    const std::lock_guard alone(mutex_);
    MempoolId_t pool = kNoPool;
    for (const Route& route : routes_)
      if (route.takes(stream)) pool = route.pool;
    void* data = pool == kNoPool ? nullptr : from_pool(pool, bytes);
    if (data == nullptr) C10_CUDA_CHECK(cudaMalloc(&data, bytes));
    blocks_[data] = {bytes, pool};
    count(static_cast<std::int64_t>(bytes));
    std::memset(data, kNaN, bytes);
    return data;
  }
  void* raw_alloc(std::size_t bytes) override {
    return raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream());
  }
  void raw_delete(void* data) override {
    if (data == nullptr) return;
    const std::lock_guard alone(mutex_);
    const auto found = blocks_.find(data);
    TORCH_INTERNAL_ASSERT(found != blocks_.end(), "freed, and not the device's: ", data);
    const Block block = found->second;
    blocks_.erase(found);
    count(-static_cast<std::int64_t>(block.bytes));
    const auto pool = pools_.find(block.pool);
    if (pool != pools_.end())
      pool->second.free.emplace(block.bytes, data);
    else
      C10_CUDA_CHECK_WARN(cudaFree(data));
  }
  DataPtr allocate(std::size_t bytes) override {
    int device = 0;
    C10_CUDA_CHECK(cudaGetDevice(&device));
    void* data = raw_alloc(bytes);
    return {data, data, &release, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device))};
  }
  static void release(void* data);
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void beginAllocateToPool(c10::DeviceIndex, MempoolId_t id,
                           std::function<bool(cudaStream_t)> takes) override {
    const std::lock_guard alone(mutex_);
    ++pools_[id].uses;
    routes_.push_back({id, std::move(takes)});
  }
  void endAllocateToPool(c10::DeviceIndex, MempoolId_t id) override {
    const std::lock_guard alone(mutex_);
    const auto removed = std::erase_if(routes_, [&](const Route& route) { return route.pool == id; });
    TORCH_CHECK(removed > 0, "endAllocateToPool: nobody began");
  }
  void releasePool(c10::DeviceIndex, MempoolId_t id) override {
    const std::lock_guard alone(mutex_);
    const auto found = pools_.find(id);
    TORCH_CHECK(found != pools_.end(), "releasePool: there is no such pool");
    if (--found->second.uses > 0) return;
    for (const auto& [bytes, data] : found->second.free) C10_CUDA_CHECK_WARN(cudaFree(data));
    pools_.erase(found);
  }

  cached::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const std::lock_guard alone(mutex_);
    return stats_;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    const std::lock_guard alone(mutex_);
    allocated().peak = allocated().current;
  }
  bool initialized() override { return true; }
  void init(int) override {}
  void emptyCache(MempoolId_t) override {}
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void recordStream(const DataPtr&, c10::cuda::CUDAStream) override {}  // all streams are in order
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  bool isHistoryEnabled() override { return false; }
  std::string name() override { return "emulated"; }

  void setMemoryFraction(double, c10::DeviceIndex) override { POM_NOT_EMULATED("setMemoryFraction"); }
  std::vector<cached::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }
  void cacheInfo(c10::DeviceIndex, std::size_t*) override { POM_NOT_EMULATED("cacheInfo"); }
  void* getBaseAllocation(void*, std::size_t*) override { POM_NOT_EMULATED("getBaseAllocation"); }
  cached::SnapshotInfo snapshot(MempoolId_t, bool) override { POM_NOT_EMULATED("snapshot"); }
  cached::ShareableHandle shareIpcHandle(void*) override { POM_NOT_EMULATED("shareIpcHandle"); }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { POM_NOT_EMULATED("getIpcDevPtr"); }
  void recordHistory(bool, cached::CreateContextFn, std::size_t, cached::RecordContext, bool,
                     const std::vector<std::string>&) override {
    POM_NOT_EMULATED("recordHistory");
  }
  void attachOutOfMemoryObserver(cached::OutOfMemoryObserver) override {}
  void attachOomRejectionObserver(cached::OomRejectionObserver) override {}
  void attachAllocatorTraceTracker(cached::AllocatorTraceTracker) override {}
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override {}
  cudaError_t memcpyAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream,
                          bool) override {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  std::shared_ptr<cached::AllocatorState> getCheckpointState(c10::DeviceIndex, MempoolId_t) override {
    POM_NOT_EMULATED("getCheckpointState");
  }
  cached::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex,
                                                 std::shared_ptr<cached::AllocatorState>) override {
    POM_NOT_EMULATED("setCheckpointPoolState");
  }

  template <class Visit>
  void each_block(const Visit& visit) {
    const std::lock_guard alone(mutex_);
    for (const auto& [data, block] : blocks_) visit(data, block.bytes);
  }
  std::size_t bytes_at(void* data) {  // 0: there is no such block
    const std::lock_guard alone(mutex_);
    const auto found = blocks_.find(data);
    return found == blocks_.end() ? 0 : found->second.bytes;
  }

 private:
  void* from_pool(const MempoolId_t& id, std::size_t bytes) {
    auto& free = pools_.at(id).free;
    const auto found = free.lower_bound(bytes);
    if (found == free.end() || found->first > 2 * bytes) return nullptr;
    void* data = found->second;
    free.erase(found);
    return data;
  }
  c10::CachingAllocator::Stat& allocated() { return stats_.allocated_bytes[0]; }
  void count(std::int64_t bytes) {
    auto& all = allocated();
    all.current += bytes;
    all.peak = std::max(all.peak, all.current);
    (bytes > 0 ? all.allocated : all.freed) += std::abs(bytes);
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::map<MempoolId_t, Pool> pools_;
  std::vector<Route> routes_;  // of captures that go on
  cached::DeviceStats stats_;
};

Memory& memory() {
  static auto& one = *new Memory;  // tensors that nobody frees outlive all else
  return one;
}
void Memory::release(void* data) {
  memory().raw_delete(data);
}

// In the place of torch's allocator for the CPU: torch's own, or the device's memory.
class HostOrDevice final : public c10::Allocator {
 public:
  DataPtr allocate(std::size_t bytes) override {
    if (!on_device) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    void* data = memory().raw_alloc(bytes);
    return {data, data, &Memory::release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return [](void* data) {
      if (memory().bytes_at(data) > 0)
        Memory::release(data);
      else
        c10::GetDefaultCPUAllocator()->raw_deallocate(data);
    };
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

class Pinned final : public at::HostAllocator {
 public:
  DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) C10_CUDA_CHECK(cudaMallocHost(&data, bytes));
    const std::lock_guard alone(mutex_);
    blocks_[data] = bytes;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  bool holds(const void* data) {
    const std::lock_guard alone(mutex_);
    auto after = blocks_.upper_bound(data);
    if (after == blocks_.begin()) return false;
    const auto& [start, bytes] = *--after;
    return data < static_cast<const char*>(start) + bytes;
  }
  static void release(void* data);
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  std::mutex mutex_;
  std::map<const void*, std::size_t> blocks_;
};

Pinned& pinned() {
  static auto& one = *new Pinned;
  return one;
}
void Pinned::release(void* data) {
  {
    const std::lock_guard alone(pinned().mutex_);
    pinned().blocks_.erase(data);
  }
  if (data != nullptr) C10_CUDA_CHECK_WARN(cudaFreeHost(data));
}

const bool registered = [] {
  static HostOrDevice host_or_device;
  c10::SetCPUAllocator(&host_or_device, 1);
  c10::SetAllocator(c10::kCUDA, &memory());
  at::setHostAllocator(c10::kCUDA, &pinned());
  cached::allocator.store(&memory());
  return true;
}();

}  // namespace

AllocatesOnDevice::AllocatesOnDevice(bool yes) : before_(std::exchange(on_device, yes)) {}
AllocatesOnDevice::~AllocatesOnDevice() {
  on_device = before_;
}

c10::Allocator* pinned_memory() {
  return &pinned();
}
bool is_pinned(const void* data) {
  return pinned().holds(data);
}

MemoryImage::MemoryImage() {
  memory().each_block([&](void* data, std::size_t bytes) {
    const char* from = static_cast<const char*>(data);
    blocks_.push_back({data, {from, from + bytes}});
  });
}
void MemoryImage::put_back() const {
  for (const Block& block : blocks_)
    if (memory().bytes_at(block.data) == block.bytes.size())
      std::memcpy(block.data, block.bytes.data(), block.bytes.size());
}

}  // namespace emulated

namespace c10::cuda::CUDACachingAllocator {
std::atomic<CUDAAllocator*> allocator{nullptr};
}
