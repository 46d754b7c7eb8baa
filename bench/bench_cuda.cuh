// What the programs that time kernels share: waiting that cannot hang, drawn values, candidates as CUDA
// graphs, timed in turns.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cuda_runtime.h>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

inline cudaStream_t bench_stream() {
  static cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    cudaStreamCreate(&made);
    return made;
  }();
  return stream;
}

inline void bench_must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  std::fflush(stdout);
  _exit(2);
}
// A kernel that never ends must not hold the machine.
inline void bench_wait(const char* what) {
  constexpr double kHang = 5;
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t status = cudaStreamQuery(bench_stream());
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) bench_must(status, what);
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < kHang) continue;
    std::printf("%s: still running after %.0f s\n", what, kHang);
    std::fflush(stdout);
    _exit(3);
  }
}

template <class T>
__global__ void bench_draw_kernel(T* p, int64_t count, float scale, float offset, uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ULL + seed;
    x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL, x ^= x >> 33;
    p[i] = T(offset + scale * 1.7320508f * (static_cast<float>(x >> 40) * 0x1p-23f - 1.0f));
  }
}

// Device memory that goes with its owner; drawn values have mean `offset` and deviation `scale`.
class BenchMemory {
 public:
  BenchMemory() = default;
  BenchMemory(const BenchMemory&) = delete;
  BenchMemory& operator=(const BenchMemory&) = delete;
  ~BenchMemory() {
    for (void* p : taken_) cudaFree(p);
  }
  void* bytes(int64_t count) {
    void* p = nullptr;
    bench_must(cudaMalloc(&p, static_cast<size_t>(count > 0 ? count : 1)), "cudaMalloc");
    taken_.push_back(p);
    return p;
  }
  template <class T>
  T* drawn(int64_t count, float scale, float offset = 0) {
    T* const p = static_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))));
    bench_draw_kernel<<<2048, 256, 0, bench_stream()>>>(p, count, scale, offset, ++seed_ << 40);
    return p;
  }

 private:
  std::vector<void*> taken_;
  uint64_t seed_ = 0;
};

struct BenchCandidate {
  std::string name;
  std::function<cudaError_t()> run;
  cudaGraphExec_t graph = nullptr;
  std::vector<double> times = {};
  double median() {
    std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  }
};

inline void bench_capture(BenchCandidate& c) {
  cudaGraph_t graph = nullptr;
  bench_must(c.run(), c.name.c_str());  // attributes are set outside of a capture
  bench_wait(c.name.c_str());
  bench_must(cudaStreamBeginCapture(bench_stream(), cudaStreamCaptureModeThreadLocal), "a capture");
  bench_must(c.run(), c.name.c_str());
  bench_must(cudaStreamEndCapture(bench_stream(), &graph), "a capture");
  bench_must(cudaGraphInstantiate(&c.graph, graph, 0), "a graph");
  bench_must(cudaGraphDestroy(graph), "a graph");
}
inline double bench_microseconds(const BenchCandidate& c) {
  static cudaEvent_t start = nullptr, end = nullptr;
  if (!start) bench_must(cudaEventCreate(&start), "an event"), bench_must(cudaEventCreate(&end), "an event");
  bench_must(cudaEventRecord(start, bench_stream()), "an event");
  bench_must(cudaGraphLaunch(c.graph, bench_stream()), c.name.c_str());
  bench_must(cudaEventRecord(end, bench_stream()), "an event");
  bench_wait(c.name.c_str());
  float milliseconds = 0;
  bench_must(cudaEventElapsedTime(&milliseconds, start, end), "an event");
  return 1e3 * milliseconds;
}
// Medians of interleaved repetitions, in `times` of each.
inline void bench_in_turns(std::vector<BenchCandidate>& all, int repetitions) {
  for (BenchCandidate& c : all) bench_capture(c), bench_microseconds(c), bench_microseconds(c);
  for (int i = 0; i < repetitions; ++i)
    for (BenchCandidate& c : all) c.times.push_back(bench_microseconds(c));
  for (BenchCandidate& c : all) bench_must(cudaGraphExecDestroy(c.graph), "a graph");
}

}  // namespace
