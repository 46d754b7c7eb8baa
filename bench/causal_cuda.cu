// The mixer's layer under causal masks beside the layer without one. A program of its own, without torch:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. bench/causal_cuda.cu
//   pom/kernels/sm90/{gemm,scan}/*.cu -o causal_bench
//   ./causal_bench [rows ...]
// Width 1152, order 2, expansion 2, bf16, four sequences (one of 65536). Each layer is one CUDA graph of
// several launches, inputs and outputs rotating over three buffers; medians of interleaved repetitions.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_bf16.h>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include "pom/kernels/sm90/scan/scan.h"

namespace {

using namespace pom::kernels;

constexpr int64_t kWidth = 1152, kFeatures = 4 * kWidth;
constexpr int kBuffers = 3, kRepetitions = 20, kLayers = 6;  // of a graph
cudaStream_t stream = nullptr;

void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  std::fflush(stdout);
  _exit(2);
}
void wait(const char* what) {
  constexpr double kHang = 5;
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) must(status, what);
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < kHang) continue;
    std::printf("%s: still running after %.0f s\n", what, kHang);
    std::fflush(stdout);
    _exit(3);
  }
}

template <class T>
__global__ void draw_kernel(T* p, int64_t count, float scale) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t x = static_cast<uint64_t>(i) + 1;
    x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL;
    p[i] = T(scale * 1.7f * (static_cast<float>(x >> 40) * 0x1p-23f - 1.0f));
  }
}
class Memory {
 public:
  ~Memory() {
    for (void* p : taken_) cudaFree(p);
  }
  template <class T>
  T* drawn(int64_t count, float scale) {
    void* p = nullptr;
    must(cudaMalloc(&p, count * sizeof(T)), "cudaMalloc");
    taken_.push_back(p);
    draw_kernel<<<2048, 256, 0, stream>>>(static_cast<T*>(p), count, scale);
    return static_cast<T*>(p);
  }

 private:
  std::vector<void*> taken_;
};

struct Layer {
  using Value = __nv_bfloat16;
  Memory memory;
  GemmSizes wide, narrow;
  Value *x[kBuffers], *gated[kBuffers], *out[kBuffers], *prefix, *ho, *se, *ag;
  float *bias, *partial, *H, *work;

  Layer(int64_t batch, int64_t tokens)
      : wide{batch, tokens, kWidth, kFeatures}, narrow{batch, tokens, kFeatures, kWidth} {
    const int64_t rows = wide.rows();
    for (int i = 0; i < kBuffers; ++i) {
      x[i] = memory.drawn<Value>(rows * kWidth, 1), gated[i] = memory.drawn<Value>(rows * kFeatures, 1);
      out[i] = memory.drawn<Value>(rows * kWidth, 1);
    }
    prefix = memory.drawn<Value>(rows * kFeatures, 1);
    ho = memory.drawn<Value>(kWidth * kFeatures, 0.03f), se = memory.drawn<Value>(kWidth * kFeatures, 0.03f);
    ag = memory.drawn<Value>(kWidth * kFeatures, 0.03f), bias = memory.drawn<float>(kFeatures, 0.1f);
    partial = memory.drawn<float>(sums_slots(wide, {16}) * kFeatures, 1);
    H = memory.drawn<float>((rows / 16 + batch) * kFeatures, 1);
    work = memory.drawn<float>(scan_mix_work(wide) / 4, 1);
  }
  Gemm gemm(const void* a, const void* w, bool back = false) const {
    Gemm p;
    p.sizes = back ? narrow : wide, p.a = a, p.w = w, p.bias = bias;
    return p;
  }
  static cudaError_t first(std::initializer_list<cudaError_t> all) {
    for (const cudaError_t e : all)
      if (e != cudaSuccess) return e;
    return cudaSuccess;
  }
  cudaError_t aggregate(int i) const {
    return gemm_store(gemm(gated[i], ag, true), {Activation::none, Dtype::bf16, out[i]}, stream);
  }
  // In runs of so many tokens, causal; 0: no mask.
  cudaError_t runs(int i, int64_t run) const {
    SumsEpilogue sums;
    sums.runs = {run}, sums.partial = partial;
    FoldParams fold;
    fold.sizes = wide, fold.runs = {run}, fold.partial = partial, fold.causal = run > 0, fold.H = H;
    GateEpilogue gate;
    gate.runs = {run}, gate.H = H, gate.out = gated[i];
    return first({gemm_sums(gemm(x[i], ho), sums, stream), fold_sums(fold, stream),
                  gemm_gate(gemm(x[i], se), gate, stream), aggregate(i)});
  }
  // In one kernel.
  cudaError_t mix(int i, int64_t block) const {
    ScanMix mix;
    mix.block = block, mix.se = se, mix.se_bias = bias, mix.work = work, mix.out = gated[i];
    return scan_mix(gemm(x[i], ho), mix, stream);
  }
  cudaError_t mixed(int i, int64_t block) const { return first({mix(i, block), aggregate(i)}); }
  cudaError_t causal(int i, int64_t block) const {
    ScanGateEpilogue gate;
    gate.block = block, gate.prefix = prefix, gate.carry = partial, gate.out = gated[i];
    CarryParams carry;
    carry.sizes = wide, carry.totals = partial;
    return first({scan(gemm(x[i], ho), {2, prefix, partial}, stream), scan_carry(carry, stream),
                  scan_gate(gemm(x[i], se), gate, stream), aggregate(i)});
  }
};

struct Candidate {
  std::string name;
  std::function<cudaError_t(int)> run;
  int launches = kLayers;
  cudaGraphExec_t graph = nullptr;
  std::vector<double> times = {};
  double median() {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }
};
void capture(Candidate& c) {
  cudaGraph_t graph = nullptr;
  must(c.run(0), c.name.c_str());  // attributes are set outside of a capture
  wait(c.name.c_str());
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  for (int i = 0; i < c.launches; ++i) must(c.run(i % kBuffers), c.name.c_str());
  must(cudaStreamEndCapture(stream, &graph), "a capture");
  must(cudaGraphInstantiate(&c.graph, graph, 0), "a graph");
  must(cudaGraphDestroy(graph), "a graph");
}
double time_of(const Candidate& c) {
  static cudaEvent_t start = nullptr, end = nullptr;
  if (!start) must(cudaEventCreate(&start), "an event"), must(cudaEventCreate(&end), "an event");
  must(cudaEventRecord(start, stream), "an event");
  must(cudaGraphLaunch(c.graph, stream), c.name.c_str());
  must(cudaEventRecord(end, stream), "an event");
  wait(c.name.c_str());
  float milliseconds = 0;
  must(cudaEventElapsedTime(&milliseconds, start, end), "an event");
  return 1e3 * milliseconds / c.launches;
}

void measure(int64_t batch, int64_t tokens) {
  const Layer layer(batch, tokens);
  std::vector<Candidate> all;
  all.push_back({"no mask", [&](int i) { return layer.runs(i, 0); }});
  all.push_back({"causal", [&](int i) { return layer.mixed(i, 1); }});
  for (const int64_t block : {2, 8, 16, 64, 128})
    if (tokens % block == 0)
      all.push_back(
          {"blocks of " + std::to_string(block), [&layer, block](int i) { return layer.mixed(i, block); }});
  all.push_back({"causal, 3 kernels", [&](int i) { return layer.causal(i, 1); }});
  all.push_back({"blocks of 48", [&](int i) { return layer.causal(i, 48); }});
  for (const int64_t run : {128, 200, 256})
    all.push_back({"runs of " + std::to_string(run), [&layer, run](int i) { return layer.runs(i, run); }});
  const size_t layers = all.size();
  all.push_back({"  sums", [&](int i) {
                   SumsEpilogue sums;
                   sums.partial = layer.partial;
                   return gemm_sums(layer.gemm(layer.x[i], layer.ho), sums, stream);
                 }});
  all.push_back({"  mix", [&](int i) { return layer.mix(i, 1); }});
  all.push_back({"  scan", [&](int i) {
                   return scan(layer.gemm(layer.x[i], layer.ho), {2, layer.prefix, layer.partial}, stream);
                 }});
  all.push_back({"  gate by a mean", [&](int i) {
                   GateEpilogue gate;
                   gate.H = layer.H, gate.out = layer.gated[i];
                   return gemm_gate(layer.gemm(layer.x[i], layer.se), gate, stream);
                 }});
  all.push_back({"  gate by sums", [&](int i) {
                   return scan_gate(layer.gemm(layer.x[i], layer.se),
                                    {1, layer.prefix, layer.partial, nullptr, layer.gated[i]}, stream);
                 }});
  for (Candidate& c : all) capture(c), time_of(c), time_of(c);
  for (int repetition = 0; repetition < kRepetitions; ++repetition)
    for (Candidate& c : all) c.times.push_back(time_of(c));
  const double plain = all[0].median();
  for (size_t i = 0; i < all.size(); ++i) {
    std::printf("%7lld rows  %-18s %9.1f us", static_cast<long long>(batch * tokens), all[i].name.c_str(),
                all[i].median());
    std::printf(i < layers ? "  %.3f x no mask\n" : "\n", all[i].median() / plain);
    must(cudaGraphExecDestroy(all[i].graph), "a graph");
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gemm_device()) return std::printf("skipped: needs a GPU of compute capability 9.0\n"), 77;
  must(cudaStreamCreate(&stream), "a stream");
  std::vector<int64_t> all{4096, 16384, 65536};
  if (count > 1) all.clear();
  for (int i = 1; i < count; ++i) all.push_back(std::atoll(arguments[i]));
  for (const int64_t rows : all) {
    const int64_t batch = rows >= 65536 || rows % 4 != 0 ? 1 : 4;
    measure(batch, rows / batch);
  }
}
