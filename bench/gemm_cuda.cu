// Times of the products with their epilogues and of the passes between them, for every tile, beside the best
// of cuBLASLt where its header is found. A program of its own, without torch:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. bench/gemm_cuda.cu
//   pom/kernels/sm90/{gemm,scan}/*.cu pom/kernels/portable/residual_norm.cu
//   -lcublasLt -o gemm_bench (no -lcublasLt where there is no cublasLt.h)
//   ./gemm_bench [--alone MS] [--clips] [rows ...]
// With --clips: a block of a stream and a whole clip in two sequences, 720 and 7,200 rows, with a gate of a
// run for every 360 tokens. "/2" behind an epilogue: K in two splits; a plus marks the number that
// gemm_splits takes. M rows, K inputs, N outputs. Medians of interleaved repetitions after a warm-up, each of
// several launches one behind the other as in a network, inputs and outputs rotating over three buffers; a
// star marks the tile that choose_gemm_tile takes. With --alone a candidate has the GPU for so many
// milliseconds and its time is that of the second half: then its clock is the one that its own power leaves
// it.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <functional>
#include <string>
#include <unistd.h>
#include <vector>

#include "pom/kernels/portable/residual_norm.h"
#include "pom/kernels/sm90/gemm/gemm.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define POM_BENCH_CUBLAS 1
#else
#define POM_BENCH_CUBLAS 0
#endif

namespace {

using namespace pom::kernels;

constexpr int kBuffers = 3, kRepetitions = 20;
cudaStream_t stream = nullptr;
constexpr int64_t kBlockTokens = 360;  // of a block of a clip
double alone = 0;                      // milliseconds for each candidate by itself; 0: in turns
constexpr double kHang = 5;            // seconds after which a kernel counts as hanging

void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  std::fflush(stdout);
  _exit(2);
}

void wait(const char* what) {
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

// ---- memory ----

__device__ uint32_t scrambled(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL;
  return static_cast<uint32_t>(x >> 32);
}
template <class T>
__global__ void draw_kernel(T* p, int64_t count, float scale, float offset, uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const float u = fminf((scrambled(seed + 2 * i) + 0.5f) * 0x1p-32f, 0.99999994f);
    const float v = scrambled(seed + 2 * i + 1) * 0x1p-32f;
    p[i] = T(offset + scale * sqrtf(-2 * logf(u)) * cosf(6.2831853f * v));
  }
}

// Device memory that is given back together, after a shape.
class Memory {
 public:
  ~Memory() {
    for (void* p : taken_) cudaFree(p);
  }
  template <class T>
  T* normal(int64_t count, float scale, float offset = 0) {
    static uint64_t seed = 1;
    void* p = nullptr;
    must(cudaMalloc(&p, count * sizeof(T)), "cudaMalloc");
    taken_.push_back(p);
    draw_kernel<<<4096, 256>>>(static_cast<T*>(p), count, scale, offset, seed);
    seed += uint64_t{1} << 40;
    return static_cast<T*>(p);
  }
  void* values(Dtype dtype, int64_t count, float scale) {
    if (dtype == Dtype::fp32) return normal<float>(count, scale);
    if (dtype == Dtype::bf16) return normal<__nv_bfloat16>(count, scale);
    return normal<__nv_fp8_e4m3>(count, scale);
  }

 private:
  std::vector<void*> taken_;
};

// ---- time ----

// A run on the stream of the benchmark, with one of the buffers.
using Launch = std::function<cudaError_t(int buffer)>;

struct Candidate {
  Candidate(std::string name_, Launch run_) : name(std::move(name_)), run(std::move(run_)) {}
  std::string name;
  Launch run;
  bool refused = false;
  double microseconds = 0;
  int launches = 1;
  cudaGraphExec_t graph = nullptr;  // so that the host is never what is timed
  std::vector<double> times;
};

void capture(Candidate& c, int launches) {
  cudaGraph_t graph = nullptr;
  if (c.graph) must(cudaGraphExecDestroy(c.graph), "a graph");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a capture");
  for (int i = 0; i < launches; ++i) must(c.run(i % kBuffers), c.name.c_str());
  must(cudaStreamEndCapture(stream, &graph), "a capture");
  must(cudaGraphInstantiate(&c.graph, graph, 0), "a graph");
  must(cudaGraphDestroy(graph), "a graph");
  c.launches = launches;
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

void warm_up(Candidate& c) {
  c.refused = c.run(0) != cudaSuccess;
  cudaGetLastError();
  wait(c.name.c_str());
  if (c.refused) return;
  capture(c, kBuffers);
  time_of(c);
  capture(c, static_cast<int>(std::clamp((alone > 0 ? 8000 : 400) / time_of(c), 3.0, 90.0)));
  time_of(c);
}

// Repetitions for so many milliseconds; those of the second half are kept.
void hold(Candidate& c) {
  const double rounds = std::max(2.0, 1e3 * alone / (time_of(c) * c.launches));
  for (int i = 0; i < rounds; ++i) {
    const double time = time_of(c);
    if (2 * i >= rounds) c.times.push_back(time);
  }
}

void measure(std::vector<Candidate>& candidates, int repetitions = kRepetitions) {
  for (Candidate& c : candidates) warm_up(c);
  if (alone > 0)
    for (Candidate& c : candidates)
      if (!c.refused) hold(c);
  for (int repetition = 0; alone == 0 && repetition < repetitions; ++repetition)
    for (Candidate& c : candidates)
      if (!c.refused) c.times.push_back(time_of(c));
  for (Candidate& c : candidates) {
    if (c.refused) continue;
    std::nth_element(c.times.begin(), c.times.begin() + c.times.size() / 2, c.times.end());
    c.microseconds = c.times[c.times.size() / 2];
    must(cudaGraphExecDestroy(c.graph), "a graph");
    c.graph = nullptr;
  }
}

// ---- cuBLASLt ----

struct Inputs {
  GemmSizes sizes;
  Dtype dtype;
  void *a[kBuffers], *w, *out[kBuffers];
  float *bias, *a_scale, *w_scale;
  GemmSplits splits;
};

#if POM_BENCH_CUBLAS
void must(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::printf("%s: cuBLAS status %d\n", what, static_cast<int>(status));
  std::fflush(stdout);
  _exit(2);
}

// In columns first, out^T (N, M) = (w as (K, N))^T (a as (K, M)).
class Cublas {
 public:
  static constexpr int kMost = 16;
  explicit Cublas(const Inputs& in) : in_(in) {
    const cublasOperation_t turned = CUBLAS_OP_T;
    const cudaDataType_t type = in.dtype == Dtype::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    const uint64_t M = in.sizes.rows(), K = in.sizes.inputs, N = in.sizes.outputs;
    if (!handle_) must(cublasLtCreate(&handle_), "cublasLtCreate");
    if (!workspace_) must(cudaMalloc(&workspace_, kWorkspace), "cudaMalloc");
    must(cublasLtMatmulDescCreate(&gemm_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
    must(cublasLtMatmulDescSetAttribute(gemm_, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned),
         "turned");
    must(cublasLtMatrixLayoutCreate(&w_, type, K, N, K), "w");
    must(cublasLtMatrixLayoutCreate(&a_, type, K, M, K), "a");
    must(cublasLtMatrixLayoutCreate(&out_, CUDA_R_16BF, N, M, N), "out");
    cublasLtMatmulPreference_t preference = nullptr;
    must(cublasLtMatmulPreferenceCreate(&preference), "a preference");
    must(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &kWorkspace, sizeof kWorkspace),
         "the workspace");
    if (cublasLtMatmulAlgoGetHeuristic(handle_, gemm_, w_, a_, out_, out_, preference, kMost, found_,
                                       &count_) != CUBLAS_STATUS_SUCCESS)
      count_ = 0;
    cublasLtMatmulPreferenceDestroy(preference);
  }
  ~Cublas() {
    cublasLtMatrixLayoutDestroy(w_), cublasLtMatrixLayoutDestroy(a_), cublasLtMatrixLayoutDestroy(out_);
    cublasLtMatmulDescDestroy(gemm_);
  }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  int count() const { return count_; }
  cudaError_t run(int algorithm, int buffer) const {
    const float one = 1, zero = 0;
    const cublasStatus_t status =
        cublasLtMatmul(handle_, gemm_, &one, in_.w, w_, in_.a[buffer], a_, &zero, in_.out[buffer], out_,
                       in_.out[buffer], out_, &found_[algorithm].algo, workspace_, kWorkspace, stream);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorNotSupported;
  }

 private:
  static constexpr size_t kWorkspace = size_t{64} << 20;
  static inline cublasLtHandle_t handle_ = nullptr;
  static inline void* workspace_ = nullptr;
  Inputs in_;
  cublasLtMatmulDesc_t gemm_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, a_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t found_[kMost] = {};
  int count_ = 0;
};
#else
class Cublas {
 public:
  explicit Cublas(const Inputs&) {}
  int count() const { return 0; }
  cudaError_t run(int, int) const { return cudaErrorNotSupported; }
};
#endif

// The index of its fastest algorithm, or -1.
int best_algorithm(const Cublas& cublas) {
  std::vector<Candidate> all;
  for (int i = 0; i < cublas.count(); ++i)
    all.push_back(
        {"cuBLAS " + std::to_string(i), [&cublas, i](int buffer) { return cublas.run(i, buffer); }});
  measure(all, 5);
  int best = -1;
  for (int i = 0; i < cublas.count(); ++i)
    if (!all[i].refused && (best < 0 || all[i].microseconds < all[best].microseconds)) best = i;
  return best;
}

// ---- products ----

int processors() {
  int count = 0;
  must(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0), "the device");
  return count;
}

Inputs inputs_of(Memory& memory, Dtype dtype, const GemmSizes& s) {
  Inputs in{};
  in.sizes = s, in.dtype = dtype;
  const float sd = 1 / std::sqrt(static_cast<float>(s.inputs)), stretch = dtype == Dtype::e4m3 ? 64.0f : 1.0f;
  for (int i = 0; i < kBuffers; ++i) {
    in.a[i] = memory.values(dtype, s.rows() * s.inputs, stretch);
    in.out[i] = memory.values(Dtype::bf16, s.rows() * s.outputs, 1);
  }
  in.w = memory.values(dtype, s.outputs * s.inputs, dtype == Dtype::e4m3 ? stretch : sd);
  in.bias = memory.normal<float>(s.outputs, 0.1f);
  in.a_scale = memory.normal<float>(s.rows(), 0.01f / stretch, 1 / stretch);
  in.w_scale = memory.normal<float>(s.outputs, 0.01f * sd / stretch, sd / stretch);
  return in;
}

Gemm gemm_of(const Inputs& in, int tile, int buffer) {
  Gemm p;
  p.sizes = in.sizes, p.dtype = in.dtype, p.a = in.a[buffer], p.w = in.w, p.bias = in.bias, p.tile = tile;
  p.splits = in.splits;
  if (in.dtype == Dtype::e4m3) p.a_scale = in.a_scale, p.w_scale = in.w_scale;
  return p;
}

void print_rows(const Inputs& in, const std::string& epilogue, const std::vector<Candidate>& all,
                double best) {
  const GemmSizes s = in.sizes;
  const double work = 2e-6 * static_cast<double>(s.rows()) * s.inputs * s.outputs;
  const int chosen = choose_gemm_tile(s, processors(), 256, in.splits.count);
  for (size_t i = 0; i < all.size(); ++i) {
    const Candidate& c = all[i];
    const bool star = i == static_cast<size_t>(chosen);
    std::printf("%7lld %5lld %5lld  %-4s  %-11s  %-8s%c ", static_cast<long long>(s.rows()),
                static_cast<long long>(s.outputs), static_cast<long long>(s.inputs),
                in.dtype == Dtype::e4m3 ? "e4m3" : "bf16", epilogue.c_str(), c.name.c_str(),
                star ? '*' : ' ');
    if (c.refused) {
      std::printf("  refused\n");
      continue;
    }
    std::printf("%9.2f %8.1f", c.microseconds, work / c.microseconds);
    best > 0 ? std::printf("  %6.3f\n", c.microseconds / best) : std::printf("       -\n");
  }
}

// The same with a product of a tile.
using Run = std::function<cudaError_t(const Gemm&, int buffer)>;

// Every tile of a epilogue beside cuBLAS, in turn.
void time_epilogue(const Inputs& in, const std::string& epilogue, const Cublas& cublas, int algorithm,
                   const Run& run) {
  std::vector<Candidate> all;
  for (int tile = 1; tile <= gemm_tiles(); ++tile) {
    const GemmTile t = gemm_tile(tile - 1);
    all.push_back({std::to_string(t.rows) + "x" + std::to_string(t.columns),
                   [&, tile](int buffer) { return run(gemm_of(in, tile, buffer), buffer); }});
  }
  if (algorithm >= 0)
    all.push_back({"cuBLAS", [&, algorithm](int buffer) { return cublas.run(algorithm, buffer); }});
  measure(all);
  print_rows(in, epilogue, all, algorithm >= 0 ? all.back().microseconds : 0);
}

void time_wide(Dtype dtype, int64_t batch, int64_t tokens, int64_t d, int64_t run_tokens) {
  Memory memory;
  const Inputs in = inputs_of(memory, dtype, {batch, tokens, d, 4 * d});
  const Cublas cublas(in);
  const int algorithm = best_algorithm(cublas);
  const Runs runs{run_tokens};
  const int64_t means = run_tokens > 0 ? batch * ((tokens + run_tokens - 1) / run_tokens) : batch;
  const GateRuns kind = gate_runs(in.sizes, runs);
  float* const H = memory.normal<float>(means * 4 * d, 1.0f);
  float* const scales = memory.normal<float>(batch, 0.0f, 0.01f);
  float* const partial = memory.normal<float>(sums_slots(in.sizes, runs) * 4 * d, 1.0f);
  const Dtype out = dtype;
  const auto store = [&](Activation activation, Dtype to) {
    return [&, activation, to](const Gemm& p, int buffer) {
      return gemm_store(p, {activation, to, in.out[buffer], scales}, stream);
    };
  };
  time_epilogue(in, "store", cublas, algorithm, store(Activation::none, Dtype::bf16));
  time_epilogue(in, "gelu", cublas, algorithm, store(Activation::gelu, out));
  const char* const gate = kind == GateRuns::one ? "gate" : kind == GateRuns::two ? "gate2" : "gate any";
  time_epilogue(in, gate, cublas, algorithm, [&](const Gemm& p, int buffer) {
    return gemm_gate(p, {runs, H, out, in.out[buffer], scales}, stream);
  });
  time_epilogue(in, "sums 2", cublas, algorithm, [&](const Gemm& p, int) {
    return gemm_sums(p, {2, runs, nullptr, partial}, stream);
  });
  FoldParams fold{in.sizes, runs, partial};
  fold.H = H;
  std::vector<Candidate> alone{{"fold", [&](int) { return fold_sums(fold, stream); }}};
  measure(alone);
  std::printf("%7lld %5lld      -  fp32  fold      %9.2f us\n", static_cast<long long>(in.sizes.rows()),
              static_cast<long long>(4 * d), alone[0].microseconds);
}

void time_narrow(Dtype dtype, int64_t batch, int64_t tokens, int64_t inputs, int64_t d) {
  Memory memory;
  Inputs in = inputs_of(memory, dtype, {batch, tokens, inputs, d});
  const Cublas cublas(in);
  const int algorithm = best_algorithm(cublas);
  float* x[kBuffers];
  for (float*& p : x) p = memory.normal<float>(batch * tokens * d, 1.0f);
  const float* const gate = memory.normal<float>(batch * d, 0.01f);
  const GemmSplitBytes need = gemm_split_bytes(in.sizes);
  GemmSplits& splits = in.splits;
  splits.counters = reinterpret_cast<uint32_t*>(memory.normal<float>(need.counters / 4, 1.0f));
  splits.counters_bytes = need.counters;
  must(cudaMemset(splits.counters, 0, need.counters), "counters");
  splits.sums = memory.normal<float>(need.sums / 4, 1.0f), splits.sums_bytes = need.sums;
  const int ours = gemm_splits(in.sizes, dtype);
  for (splits.count = 1; splits.count <= (ours > 1 ? 4 : 1); ++splits.count) {
    const auto name = [&](const char* epilogue) {
      std::string found = epilogue;
      if (splits.count > 1) found.append("/").append(std::to_string(splits.count));
      if (splits.count == ours && ours > 1) found.append("+");
      return found;
    };
    time_epilogue(in, name("store"), cublas, algorithm, [&](const Gemm& p, int buffer) {
      return gemm_store(p, {Activation::none, Dtype::bf16, in.out[buffer]}, stream);
    });
    time_epilogue(in, name("residual"), cublas, algorithm, [&](const Gemm& p, int buffer) {
      return gemm_residual(p, {x[buffer], gate, d}, stream);
    });
  }
}

// ---- the passes between ----

void time_stream(int64_t batch, int64_t tokens, int64_t d) {
  Memory memory;
  const int64_t rows = batch * tokens;
  StreamNormParams base;
  base.batch = batch, base.tokens = tokens, base.width = d, base.stride = 3 * d, base.eps = 1e-6f;
  base.gate = memory.normal<float>(batch * 3 * d, 0.1f), base.scale = base.gate + d,
  base.shift = base.scale + d;
  base.row_scale = memory.normal<float>(rows, 1.0f);
  float* x[kBuffers];
  void *y[kBuffers], *out[kBuffers];
  for (int i = 0; i < kBuffers; ++i) {
    x[i] = memory.normal<float>(rows * d, 1.0f);
    y[i] = memory.values(Dtype::bf16, rows * d, 0.1f), out[i] = memory.values(Dtype::bf16, rows * d, 1.0f);
  }
  struct Kind {
    const char* name;
    bool add;
    Dtype out;
    double bytes;  // of a value
  };
  const Kind kinds[] = {{"norm", false, Dtype::bf16, 6},
                        {"add, norm", true, Dtype::bf16, 12},
                        {"norm e4m3", false, Dtype::e4m3, 5},
                        {"add, norm e4m3", true, Dtype::e4m3, 11}};
  std::vector<Candidate> all;
  for (const Kind& kind : kinds)
    all.push_back({kind.name, [&, kind](int buffer) {
                     StreamNormParams p = base;
                     p.x = x[buffer], p.out = out[buffer], p.out_dtype = kind.out;
                     if (kind.add) p.y = y[buffer];
                     return stream_norm(p, stream);
                   }});
  measure(all);
  for (size_t i = 0; i < all.size(); ++i)
    std::printf("%7lld %5lld      -  stream %-15s %9.2f us %8.0f GB/s\n", static_cast<long long>(rows),
                static_cast<long long>(d), all[i].name.c_str(), all[i].microseconds,
                1e-3 * kinds[i].bytes * static_cast<double>(rows * d) / all[i].microseconds);
}

}  // namespace

int main(int count, char** arguments) {
  constexpr int64_t kWidth = 1152;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gemm_device()) return std::printf("skipped: needs a GPU of compute capability 9.0\n"), 77;
  must(cudaStreamCreate(&stream), "a stream");
  std::vector<int64_t> all;
  bool clips = false;
  for (int i = 1; i < count; ++i) {
    if (std::string(arguments[i]) == "--alone" && i + 1 < count)
      alone = std::atof(arguments[++i]);
    else if (std::string(arguments[i]) == "--clips")
      clips = true;
    else
      all.push_back(std::atoll(arguments[i]));
    if (!all.empty() && all.back() < 1)
      return std::printf("usage: gemm_bench [--alone MS] [--clips] [rows ...]\n"), 2;
  }
  if (all.empty() && !clips) all = {1024, 4096, 9216, 16384, 65536};
  std::printf("cuBLASLt: %s\n", POM_BENCH_CUBLAS ? "the best of up to 16 algorithms" : "not found");
  std::printf("   rows     N     K  dtype epilogue     tile            us  TFLOP/s  / cuBLAS\n");
  for (const int64_t tokens :
       clips ? std::vector<int64_t>{kBlockTokens, 10 * kBlockTokens} : std::vector<int64_t>{})
    for (const Dtype dtype : {Dtype::bf16, Dtype::e4m3}) {
      time_wide(dtype, 2, tokens, kWidth, kBlockTokens);
      time_narrow(dtype, 2, tokens, 4 * kWidth, kWidth);
      time_narrow(dtype, 2, tokens, kWidth, kWidth);
    }
  for (const int64_t rows : all) {
    const int64_t batch = rows >= 65536 || rows % 4 != 0 ? 1 : 4;
    for (const Dtype dtype : {Dtype::bf16, Dtype::e4m3}) {
      if (dtype == Dtype::e4m3 && rows < 16384) continue;
      time_wide(dtype, batch, rows / batch, kWidth, 0);
      time_narrow(dtype, batch, rows / batch, 4 * kWidth, kWidth);
    }
    time_stream(batch, rows / batch, kWidth);
  }
}
