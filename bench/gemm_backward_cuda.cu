// Times of training's products with their epilogues, for every tile, beside the plain product of the same
// sizes; and of the passes that stand around them, with the bytes they move in a second. A program without
// torch:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. bench/gemm_backward_cuda.cu
//   pom/kernels/sm90/{gemm,scan}/*.cu pom/kernels/portable/mixer.cu
//   pom/kernels/portable/gated_norm.cu pom/kernels/portable/modulation.cu -o gemm_backward_bench
//   ./gemm_backward_bench [rows ...]
// M rows in four sequences, width d = 1152, order 2, 4 d features: the layer of DiPoM-XL, in bf16. Medians of
// interleaved repetitions after a warm-up.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_bf16.h>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include "pom/kernels/portable/gated_norm.h"
#include "pom/kernels/portable/mixer.h"
#include "pom/kernels/sm90/gemm/gemm_backward.h"

namespace {

using namespace pom::kernels;

constexpr int64_t kWidth = 1152, kFeatures = 4 * kWidth, kBatch = 4;
constexpr int kRepetitions = 15, kLaunches = 5;

void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  std::fflush(stdout);
  _exit(2);
}

__global__ void draw_kernel(__nv_bfloat16* p, int64_t count, float scale) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    p[i] = __float2bfloat16(scale * 3.4f * (static_cast<float>(x) * 0x1p-32f - 0.5f));
  }
}

// Device memory for the length of the program's turn.
class Memory {
 public:
  ~Memory() {
    for (void* p : taken_) cudaFree(p);
  }
  void* take(int64_t bytes) {
    void* p = nullptr;
    must(cudaMalloc(&p, bytes), "cudaMalloc");
    must(cudaMemset(p, 0, bytes), "cudaMemset");
    taken_.push_back(p);
    return p;
  }
  void* halves(int64_t count, float scale) {
    void* const p = take(2 * count);
    draw_kernel<<<4096, 256>>>(static_cast<__nv_bfloat16*>(p), count, scale);
    return p;
  }
  float* floats(int64_t count) { return static_cast<float*>(take(4 * count)); }

 private:
  std::vector<void*> taken_;
};

struct Candidate {
  std::string name;
  double bytes;  // of a pass; 0: a product
  std::function<cudaError_t()> run;
  std::vector<double> times = {};
  double median() {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }
};

double microseconds(const Candidate& c) {
  static cudaEvent_t start = nullptr, end = nullptr;
  if (!start) must(cudaEventCreate(&start), "an event"), must(cudaEventCreate(&end), "an event");
  must(cudaEventRecord(start), "an event");
  for (int i = 0; i < kLaunches; ++i) must(c.run(), c.name.c_str());
  must(cudaEventRecord(end), "an event");
  must(cudaEventSynchronize(end), c.name.c_str());
  float milliseconds = 0;
  must(cudaEventElapsedTime(&milliseconds, start, end), "an event");
  return 1e3 * milliseconds / kLaunches;
}

void measure(std::vector<Candidate>& candidates) {
  std::erase_if(candidates, [](const Candidate& c) {
    const bool refused = c.run() != cudaSuccess;
    cudaGetLastError();
    must(cudaDeviceSynchronize(), c.name.c_str());
    return refused;
  });
  for (int i = 0; i < kRepetitions; ++i)
    for (Candidate& c : candidates) c.times.push_back(microseconds(c));
  const double plain = candidates.front().median();
  for (Candidate& c : candidates)
    if (c.bytes > 0)
      std::printf("  %-34s %9.1f us  %6.0f GB/s\n", c.name.c_str(), c.median(), 1e-3 * c.bytes / c.median());
    else
      std::printf("  %-34s %9.1f us  %6.3f of the plain product\n", c.name.c_str(), c.median(),
                  c.median() / plain);
}

void layer(int64_t rows) {
  Memory m;
  const int64_t values = rows * kFeatures, D = kFeatures / 2;
  const double U = 2.0 * static_cast<double>(values), u = U / 4;  // bytes of a tensor of features, of tokens
  Gemm p;
  p.sizes = {kBatch, rows / kBatch, kWidth, kFeatures};
  p.a = m.halves(rows * kWidth, 1), p.w = m.halves(kFeatures * kWidth, 0.04f);
  void *const saved = m.halves(values, 1), *const one = m.halves(values, 1), *const two = m.halves(values, 1);
  void* const w = m.take(2 * kFeatures * kWidth);
  float *const bias = m.floats(kFeatures), *const H = m.floats(kBatch * kFeatures);
  float* const partial = m.floats(sums_slots(p.sizes, {}) * kFeatures);
  float* const sums = m.floats(gemm_row_tiles(rows) * kFeatures);
  std::vector<Candidate> all;
  all.push_back({"plain", 0, [=] { return gemm_store(p, {Activation::none, Dtype::bf16, one}, nullptr); }});
  Gemm with = p;
  with.bias = bias;
  all.push_back({"gelu, before kept", 0, [=] {
                   return gemm_store(with, {Activation::gelu, Dtype::bf16, one, nullptr, two}, nullptr);
                 }});
  GateEpilogue gate;
  gate.H = H, gate.out = one, gate.before = two;
  all.push_back({"gate, se kept", 0, [=] { return gemm_gate(with, gate, nullptr); }});
  for (int tile = 0; tile <= gemm_tiles(); ++tile) {
    const std::string name = tile == 0 ? std::string(", chosen")
                                       : ", " + std::to_string(gemm_tile(tile - 1).columns) + " x " +
                                             std::to_string(gemm_tile(tile - 1).beside);
    Gemm q = p, r = with;
    q.tile = r.tile = tile;
    all.push_back({"plain" + name, 0, [=] {
                     return gemm_store(q, {Activation::none, Dtype::bf16, one}, nullptr);
                   }});
    all.push_back({"context" + name, 0, [=] { return gemm_context(r, {2, partial, one}, nullptr); }});
    all.push_back({"gate backward" + name, 0, [=] {
                     return gemm_gate_backward(q, {saved, H, one, two, partial, sums}, nullptr);
                   }});
    all.push_back({"gelu backward" + name, 0, [=] {
                     return gemm_gelu_backward(q, {saved, one, two, sums}, nullptr);
                   }});
  }
  const MixerSizes s{Dtype::bf16, kBatch, rows / kBatch, rows / kBatch, D, 2};
  void* const three = m.halves(values, 1);
  float* const scratch = m.floats(kBatch * std::max(query_parts(s), context_parts(s)) * kFeatures);
  float *const more = m.floats(kBatch * query_parts(s) * kFeatures), *const dH = m.floats(kBatch * kFeatures);
  const double weight = 4.0 * kFeatures * kWidth;
  all.push_back({"transpose", weight, [=] { return transpose({kWidth, kFeatures, p.w, w}, nullptr); }});
  all.push_back({"context rows", weight, [=] {
                   return context_rows({kFeatures, kWidth, p.w, w}, 2, nullptr);
                 }});
  all.push_back({"sums of tiles", 4.0 * static_cast<double>(sums_slots(p.sizes, {})) * kFeatures, [=] {
                   return add_slots({p.sizes, partial, dH}, nullptr);
                 }});
  all.push_back({"means backward (a pass)", 2 * U, [=] {
                   return mixer_means_backward({s, saved, H, one, scratch}, nullptr);
                 }});
  all.push_back({"gate backward (a pass)", 4 * U, [=] {
                   return mixer_gate_backward({s, saved, one, H, scratch, two, dH, three, more}, nullptr);
                 }});
  const RowSizes size{kBatch, rows / kBatch, kWidth};
  float *const x = m.floats(rows * kWidth), *const sum = m.floats(rows * kWidth);
  float *const rest = m.floats(2 * rows), *const vectors = m.floats(6 * kBatch * kWidth);
  float* const parts = m.floats(gated_norm_scratch(size, false));
  GatedNormParams n;
  n.sizes = size, n.y_dtype = Dtype::bf16, n.x = x, n.y = p.a, n.gate = n.scale = n.shift = vectors;
  n.eps = 1e-6f, n.sum = sum, n.out = one, n.mean = rest, n.rstd = rest + rows;
  all.push_back({"gated norm", 6 * u, [=] { return gated_norm(n, nullptr); }});
  GatedNormBackwardParams b;
  b.sizes = size, b.y_dtype = Dtype::bf16, b.dsum = x, b.dout = saved, b.sum = sum, b.y = p.a;
  b.gate = b.scale = vectors, b.mean = rest, b.rstd = rest + rows, b.scratch = parts, b.dx = one, b.dy = two;
  b.dgate = vectors + 3 * kBatch * kWidth, b.dscale = b.dgate + kBatch * kWidth;
  b.dshift = b.dscale + kBatch * kWidth;
  all.push_back({"gated norm backward", 9 * u, [=] { return gated_norm_backward(b, nullptr); }});
  std::printf("%lld rows\n", static_cast<long long>(rows));
  measure(all);
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gemm_device()) return std::printf("skipped: needs a GPU of compute capability 9.0\n"), 77;
  std::vector<int64_t> rows;
  for (int i = 1; i < count; ++i) rows.push_back(std::atoll(arguments[i]) / kBatch * kBatch);
  if (rows.empty()) rows = {4096, 16384, 65536};
  for (const int64_t each : rows) layer(each);
}
