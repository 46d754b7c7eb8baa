// One recurrent step of a stack of blocks (mixer and feed-forward) beside the time of reading its weights
// once. A program of its own, without torch:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. bench/step_cuda.cu
//   pom/kernels/portable/few_rows_gemm.cu pom/kernels/sm90/decode/stack_step.cu -o step_bench
//   ./step_bench [sequences ...]
// With -DPOM_STEP_TRACE it also prints, for a layer in the middle, how long the parts of its phases took in
// all blocks. Width 1152, order 2, expansion 2, feed-forward 4, 28 layers; one token of each sequence. The
// whole step is one CUDA graph: of a kernel for each product, or of one kernel for all. Medians of
// interleaved repetitions.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda_bf16.h>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include "pom/kernels/portable/few_rows_gemm.h"
#include "pom/kernels/sm90/decode/stack_step.h"

#ifdef POM_STEP_TRACE
namespace pom::kernels {
cudaError_t stack_step_trace_layer(int layer);
cudaError_t stack_step_trace(long long (*to)[160][4][7]);  // cycles, nanoseconds
}  // namespace pom::kernels
#endif

namespace {

using namespace pom::kernels;

constexpr int64_t kLayers = 28, kWidth = 1152, kFeatures = 4 * kWidth, kMatrix = kWidth * kFeatures;
constexpr int64_t kMatrices = 5, kWeights = kLayers * kMatrices * kMatrix;
constexpr int kRepetitions = 40;
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
__global__ void draw_kernel(T* p, int64_t count, float scale, float offset) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t x = static_cast<uint64_t>(i) + 1;
    x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL;
    p[i] = T(offset + scale * (static_cast<float>(x >> 40) * 0x1p-23f - 1.0f));
  }
}
template <class T>
T* drawn(int64_t count, float scale, float offset = 0) {
  void* p = nullptr;
  must(cudaMalloc(&p, count * sizeof(T)), "cudaMalloc");
  draw_kernel<<<2048, 256, 0, stream>>>(static_cast<T*>(p), count, scale, offset);
  return static_cast<T*>(p);
}

// ---- reading alone ----

template <int Together>
__global__ void __launch_bounds__(512) read_kernel(const uint4* p, int64_t count, uint32_t* out) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t mixed = 0;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (Together - 1) * step < count; i += Together * step) {
    uint4 v[Together];
#pragma unroll
    for (int j = 0; j < Together; ++j) v[j] = __ldcs(p + i + j * step);
#pragma unroll
    for (int j = 0; j < Together; ++j) mixed ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += step) mixed ^= p[i].x ^ p[i].y ^ p[i].z ^ p[i].w;
  if (mixed == 0x12345678u) *out = mixed;  // never, as a rule: keeps the reads
}

// ---- the step ----

struct Stack {
  explicit Stack(int64_t sequences)
      : batch(sequences),
        x(drawn<float>(batch * kWidth, 1)),
        modulation(drawn<float>(batch * 6 * kWidth, 0.1f)),
        H(drawn<float>(batch * kFeatures, 1)),
        sums(drawn<float>(kLayers * batch * kFeatures, 1)),
        between(drawn<__nv_bfloat16>(batch * kFeatures, 1)),
        weights(drawn<__nv_bfloat16>(kWeights, 0.03f)),
        biases(drawn<float>(kLayers * kMatrices * kFeatures, 0.1f)) {
    must(cudaMalloc(&counts, 8 * batch), "cudaMalloc");
    must(cudaMemsetAsync(counts, 0, 8 * batch, stream), "cudaMemset");
    for (int64_t layer = 0; layer < kLayers; ++layer) layers.push_back(described(layer));
    must(cudaMalloc(&workspace, stack_step_workspace(as_one())), "cudaMalloc");
  }
  ~Stack() {
    for (void* p : {static_cast<void*>(x), static_cast<void*>(modulation), static_cast<void*>(H),
                    static_cast<void*>(sums), static_cast<void*>(between), static_cast<void*>(weights),
                    static_cast<void*>(biases), static_cast<void*>(counts), workspace})
      cudaFree(p);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // With the norm of x by some part of the modulation, or of what is between.
  FewRowsGemm gemm(int64_t layer, int64_t which, int part, bool ahead) const {
    FewRowsGemm p;
    const int64_t matrix = layer * kMatrices + which;
    p.sizes = {batch, 1, part >= 0 ? kWidth : kFeatures, part >= 0 ? kFeatures : kWidth};
    p.w = weights + matrix * kMatrix, p.bias = biases + matrix * kFeatures;
    p.a = part >= 0 ? static_cast<const void*>(x) : between;
    p.settled = ahead && matrix > 0;
    if (part >= 0) {
      const float* m = modulation + part * kWidth;
      p.norm = {m, m + kWidth, 6 * kWidth, 1e-6f};
    }
    return p;
  }
  cudaError_t step(bool ahead) const {
    cudaError_t worst = cudaSuccess;
    const auto note = [&](cudaError_t e) { worst = worst == cudaSuccess ? e : worst; };
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      float* const sum = sums + layer * batch * kFeatures;
      RowsSums context;
      context.order = 2, context.causal = true;
      context.sum = context.total = sum, context.count = counts, context.H = H;
      note(rows_sums(gemm(layer, 0, 0, ahead), context, stream));
      note(rows_gate(gemm(layer, 1, 0, ahead), {{}, H, between}, stream));
      note(rows_residual(gemm(layer, 2, -1, ahead), {x, modulation + 2 * kWidth, 6 * kWidth}, stream));
      note(rows_store(gemm(layer, 3, 3, ahead), {Activation::gelu, Dtype::bf16, between}, stream));
      note(rows_residual(gemm(layer, 4, -1, ahead), {x, modulation + 5 * kWidth, 6 * kWidth}, stream));
    }
    return worst;
  }

  // The same as one kernel.
  StackStep as_one() const {
    StackStep s;
    s.rows = batch, s.width = kWidth, s.features = kFeatures / 2, s.hidden = kFeatures, s.order = 2;
    s.modulation_stride = 6 * kWidth, s.eps = 1e-6f, s.x = x, s.workspace = workspace;
    s.layers = layers.data(), s.layer_count = kLayers;
    return s;
  }
  StackLayer described(int64_t layer) const {
    const auto matrix = [&](int64_t which) { return weights + (layer * kMatrices + which) * kMatrix; };
    const auto bias = [&](int64_t which) { return biases + (layer * kMatrices + which) * kFeatures; };
    StackLayer l;
    l.context = matrix(0), l.gate = matrix(1), l.out = matrix(2), l.up = matrix(3), l.down = matrix(4);
    l.context_bias = bias(0), l.gate_bias = bias(1), l.out_bias = bias(2);
    l.up_bias = bias(3), l.down_bias = bias(4);
    l.modulation = modulation, l.sum = sums + layer * batch * kFeatures, l.count = counts;
    return l;
  }

  int64_t batch;
  float *x, *modulation, *H, *sums;
  __nv_bfloat16 *between, *weights;
  float* biases;
  int64_t* counts = nullptr;
  std::vector<StackLayer> layers;
  void* workspace = nullptr;
};

// ---- time ----

struct Candidate {
  std::string name;
  std::function<cudaError_t()> run;
  cudaGraphExec_t graph = nullptr;
  std::vector<double> times = {};
  double median() {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }
};

void capture(Candidate& c) {
  cudaGraph_t graph = nullptr;
  must(c.run(), c.name.c_str());  // attributes are set outside of a capture
  wait(c.name.c_str());
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  must(c.run(), c.name.c_str());
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
  return 1e3 * milliseconds;
}

#ifdef POM_STEP_TRACE
using Trace = long long[160][4][7];  // blocks, phases, events

std::string spread(std::vector<long long> v) {
  if (v.empty()) return "-";
  std::sort(v.begin(), v.end());
  char line[64];
  std::snprintf(line, sizeof(line), "%5lld %5lld %5lld", v.front(), v[v.size() / 2], v.back());
  return line;
}
// Of each part of a phase: least, median and most cycles of all blocks. Then nanoseconds from the first block
// that saw all values: until the middle and the last block saw them, and until the first, middle and last
// block stored.
void print_phase(const char* name, const Trace& cycles, const Trace& wall, int phase) {
  struct Part {
    const char* name;
    int from, to;
  };
  constexpr Part kParts[] = {
      {"see", 0, 1}, {"norm", 1, 2}, {"multiply", 2, 3}, {"meet", 3, 4}, {"store", 4, 5}};
  std::string line;
  for (const Part& part : kParts) {
    std::vector<long long> v;
    for (int block = 0; block < 160; ++block)
      if (cycles[block][phase][1] > 0)
        v.push_back(cycles[block][phase][part.to] - cycles[block][phase][part.from]);
    line += std::string("  ") + part.name + " " + spread(v);
  }
  std::vector<long long> waits, seen, stored;
  int last = 0;
  for (int block = 0; block < 160; ++block)
    if (cycles[block][phase][1] > 0) {
      waits.push_back(cycles[block][phase][6]), seen.push_back(wall[block][phase][1]);
      stored.push_back(wall[block][phase][5]);
      if (wall[block][phase][5] > wall[last][phase][5]) last = block;
    }
  const long long first = seen.empty() ? 0 : *std::min_element(seen.begin(), seen.end());
  for (long long& t : seen) t -= first;
  for (long long& t : stored) t -= first;
  std::printf("  %-8s%s  weights %s  | ns seen %s  stored %s, last block %d\n", name, line.c_str(),
              spread(waits).c_str(), spread(seen).c_str(), spread(stored).c_str(), last);
}
void print_trace(const Candidate& c) {
  constexpr const char* kNames[] = {"mix", "out", "up", "down"};
  static Trace t[2];
  for (const int layer : {7, 14, 21}) {
    must(stack_step_trace_layer(layer), "the trace");
    time_of(c);
    must(stack_step_trace(t), "the trace");
    std::printf("  layer %d: least, median, most\n", layer);
    for (int phase = 0; phase < 4; ++phase) print_phase(kNames[phase], t[0], t[1], phase);
  }
}
#endif

void measure(int64_t sequences) {
  const Stack stack(sequences);
  uint32_t* out = nullptr;
  must(cudaMalloc(&out, 4), "cudaMalloc");
  const uint4* const words = reinterpret_cast<const uint4*>(stack.weights);
  constexpr int64_t kWords = kWeights * 2 / 16;
  const auto reading = [&](unsigned blocks, auto together) {
    return [=] {
      read_kernel<decltype(together)::value><<<blocks, 512, 0, stream>>>(words, kWords, out);
      return cudaGetLastError();
    };
  };
  std::vector<Candidate> all;
  for (const unsigned blocks : {132u, 264u, 528u, 2112u, 8448u}) {
    all.push_back({"read, " + std::to_string(blocks) + " blocks, 4 together",
                   reading(blocks, std::integral_constant<int, 4>())});
    all.push_back({"read, " + std::to_string(blocks) + " blocks, 8 together",
                   reading(blocks, std::integral_constant<int, 8>())});
  }
  const size_t reads = all.size();
  all.push_back({"step", [&] { return stack.step(true); }});
  all.push_back({"step, weights not ahead", [&] { return stack.step(false); }});
  if (stack_step_supported(stack.as_one()))
    all.push_back({"step, one kernel", [&] { return stack_step(stack.as_one(), stream); }});
  for (Candidate& c : all) capture(c), time_of(c), time_of(c);
  for (int repetition = 0; repetition < kRepetitions; ++repetition)
    for (Candidate& c : all) c.times.push_back(time_of(c));
#ifdef POM_STEP_TRACE
  if (all.back().name == "step, one kernel") print_trace(all.back());
#endif
  double best = 0;
  for (size_t i = 0; i < reads; ++i) best = i == 0 ? all[i].median() : std::min(best, all[i].median());
  for (Candidate& c : all) {
    const double us = c.median();
    std::printf("%3lld sequences  %-32s %9.1f us  %5.2f TB/s  %.3f x reading\n",
                static_cast<long long>(sequences), c.name.c_str(), us, 2e-6 * kWeights / us, us / best);
    must(cudaGraphExecDestroy(c.graph), "a graph");
  }
  must(cudaFree(out), "cudaFree");
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    return std::printf("skipped: needs a GPU\n"), 77;
  must(cudaStreamCreate(&stream), "a stream");
  std::vector<int64_t> all{1, 4, 8, 16};
  if (count > 1) all.clear();
  for (int i = 1; i < count; ++i) all.push_back(std::atoll(arguments[i]));
  std::printf("%lld layers of %lld, %.3f GB of weights\n", static_cast<long long>(kLayers),
              static_cast<long long>(kWidth), 2e-9 * kWeights);
  for (const int64_t sequences : all) measure(sequences);
}
