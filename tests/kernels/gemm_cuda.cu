// The products with their epilogues, and the passes between them, against plain kernels that add up in fp64
// on the same GPU. A program of its own, so that it needs nvcc and a GPU but neither torch nor GoogleTest:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. tests/kernels/gemm_cuda.cu
//   pom/kernels/sm90/{gemm,scan}/*.cu pom/kernels/portable/residual_norm.cu -o gemm_cuda
//   ./gemm_cuda [--quick] [filter]      a part of a group's name: "sums", "bf16", "gate e4m3"
// M rows = batch * tokens, K inputs, N outputs. Results and inputs stand between guards of not-a-number;
// every case runs twice and must give the same bits, as must every tile.
#include "tests/kernels/watchdog.cuh"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <functional>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include "pom/kernels/portable/residual_norm.h"
#include "pom/kernels/sm90/gemm/gemm.h"

namespace {

using namespace pom::kernels;

// ---- counting ----

struct Group {
  int checks = 0, failed = 0, refused = 0;
  double worst = 0;  // error over its bound
};
std::map<std::string, Group> groups;
std::vector<std::string> order_of_groups;
std::string filter;
bool quick = false;

bool wanted(const std::string& group) {
  return group.find(filter) != std::string::npos;
}
Group& group_of(const std::string& name) {
  if (!groups.count(name)) order_of_groups.push_back(name);
  return groups[name];
}

[[noreturn]] void finish() {
  int checks = 0, failed = 0;
  for (const std::string& name : order_of_groups) {
    const Group& g = groups[name];
    std::printf("%-22s %7d checks, %d failed, %d refused, worst %.3f of the bound\n", name.c_str(), g.checks,
                g.failed, g.refused, g.worst);
    checks += g.checks, failed += g.failed;
  }
  std::printf("%d checks, %d failed\n", checks, failed);
  std::exit(failed > 0 || checks == 0 ? 1 : 0);
}

void expect(bool ok, const std::string& group, const std::string& what) {
  static int shown = 0;
  ++group_of(group).checks;
  if (ok) return;
  ++group_of(group).failed;
  std::printf("FAILED: %s: %s\n", group.c_str(), what.c_str());
  if (++shown < 20) return;
  std::printf("stopped after 20 failures\n");
  finish();
}

// ---- memory ----

const char* name_of(Dtype dtype) {
  const char* const names[] = {"fp32", "bf16", "fp16", "e4m3"};
  return names[static_cast<int>(dtype)];
}
__host__ __device__ int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? 4 : dtype == Dtype::e4m3 ? 1 : 2;
}

constexpr int64_t kGuard = 256;

// One allocation, given out from the front and taken back as a whole.
class Arena {
 public:
  void* take(int64_t bytes) {
    if (!memory_) must(cudaMalloc(&memory_, kBytes), "the arena");
    void* const p = memory_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > kBytes) std::printf("FAILED: the arena is too small\n"), _exit(2);
    return p;
  }
  int64_t mark() const { return used_; }
  void release(int64_t mark) { used_ = mark; }

 private:
  static constexpr int64_t kBytes = int64_t{6} << 30;
  char* memory_ = nullptr;
  int64_t used_ = 0;
};
Arena arena;

struct Scope {
  int64_t mark = arena.mark();
  ~Scope() { arena.release(mark); }
};

// Values between guards, `shift` elements off an address of 256 bytes.
struct Buffer {
  Dtype dtype = Dtype::fp32;
  int64_t count = 0;
  char* memory = nullptr;
  int shift = 0;

  Buffer() = default;
  Buffer(Dtype dtype_, int64_t count_, int shift_ = 0) : dtype(dtype_), count(count_), shift(shift_) {
    memory = static_cast<char*>(arena.take(total()));
    clear();
  }
  int64_t bytes() const { return count * bytes_of(dtype); }
  int64_t front() const { return kGuard + shift * bytes_of(dtype); }
  int64_t total() const { return front() + bytes() + kGuard; }
  char* data() const { return memory + front(); }
  float* floats() const { return reinterpret_cast<float*>(data()); }
  void clear() const { must(cudaMemsetAsync(memory, 0xFF, total(), nullptr), "cudaMemset"); }
  void copy_from(const Buffer& other) const {
    must(cudaMemcpyAsync(data(), other.data(), bytes(), cudaMemcpyDeviceToDevice, nullptr), "a copy");
  }
};

template <class T>
T* upload(const std::vector<T>& values) {
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
  void* const p = arena.take(bytes);
  must(cudaMemcpy(p, values.data(), bytes, cudaMemcpyHostToDevice), "copy to the device");
  return static_cast<T*>(p);
}

__device__ double value_of(Dtype dtype, const void* p, int64_t i) {
  if (dtype == Dtype::fp32) return static_cast<const float*>(p)[i];
  if (dtype == Dtype::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  if (dtype == Dtype::fp16) return __half2float(static_cast<const __half*>(p)[i]);
  return static_cast<float>(static_cast<const __nv_fp8_e4m3*>(p)[i]);
}
__device__ void put_value(Dtype dtype, void* p, int64_t i, float value) {
  if (dtype == Dtype::fp32)
    static_cast<float*>(p)[i] = value;
  else if (dtype == Dtype::bf16)
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(value);
  else if (dtype == Dtype::fp16)
    static_cast<__half*>(p)[i] = __float2half(value);
  else
    static_cast<__nv_fp8_e4m3*>(p)[i] = __nv_fp8_e4m3(value);
}

unsigned grid_of(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>((count + 255) / 256, 1, 1 << 16));
}
#define EACH(i, count)                                                                       \
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < (count); \
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)

__device__ uint32_t scrambled(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL;
  return static_cast<uint32_t>(x >> 32);
}
__global__ void draw_kernel(Dtype dtype, void* p, int64_t count, float scale, float offset, uint64_t seed) {
  EACH(i, count) {
    const float u = (scrambled(seed + 2 * i) + 0.5f) * 0x1p-32f, v = scrambled(seed + 2 * i + 1) * 0x1p-32f;
    put_value(dtype, p, i, offset + scale * sqrtf(-2 * logf(fminf(u, 0.99999994f))) * cosf(6.2831853f * v));
  }
}
void draw(const Buffer& b, float scale, float offset = 0) {
  static uint64_t seed = 1;
  draw_kernel<<<grid_of(b.count), 256>>>(b.dtype, b.data(), b.count, scale, offset, seed);
  seed += uint64_t{1} << 40;
}

// ---- comparing on the device ----

struct Verdict {
  unsigned long long worst;  // the greatest error over its bound, as bits, above the element's number
  double want, got, bound;   // of that element, filled in afterwards
  unsigned outside, runs_differ, tiles_differ;
};

// What is expected before the last rounding, and how far off fp32 may be by then. e4m3 holds value / scale.
struct Expected {
  double value, error, scale = 1;
};

// Half a step of the dtype at a value; of e4m3 a whole one.
__device__ double rounding_of(Dtype dtype, double magnitude) {
  if (magnitude == 0) magnitude = 1e-300;
  const int e = ilogb(magnitude);
  if (dtype == Dtype::fp32) return ldexp(1.0, max(e, -126) - 24);
  if (dtype == Dtype::bf16) return ldexp(1.0, max(e, -126) - 8);
  if (dtype == Dtype::fp16) return ldexp(1.0, max(e, -14) - 11);
  return ldexp(1.0, max(e, -6) - 3);
}
struct Judged {
  double want, got, bound, ratio;
};
__device__ Judged judged(const Expected& e, Dtype dtype, double got) {
  double want = e.value / e.scale, error = e.error / e.scale;
  if (dtype == Dtype::e4m3) want = fmin(fmax(want, -448.0), 448.0);
  const double bound = 1.001 * (error + rounding_of(dtype, fabs(want) + error)), off = fabs(got - want);
  return {want, got, bound, off <= bound * 1e30 ? off / bound : INFINITY};
}

template <class F>
__global__ void compare_kernel(F f, Dtype dtype, const void* got, int64_t count, Verdict* verdict) {
  EACH(i, count) {
    const float ratio = static_cast<float>(judged(f(i), dtype, value_of(dtype, got, i)).ratio);
    const unsigned long long bits = static_cast<unsigned long long>(__float_as_uint(ratio)) << 32 | i;
    if (bits > *static_cast<volatile unsigned long long*>(&verdict->worst)) atomicMax(&verdict->worst, bits);
  }
}
template <class F>
__global__ void explain_kernel(F f, Dtype dtype, const void* got, Verdict* verdict) {
  const int64_t i = verdict->worst & 0xffffffffu;
  const Judged j = judged(f(i), dtype, value_of(dtype, got, i));
  verdict->want = j.want, verdict->got = j.got, verdict->bound = j.bound;
}
__global__ void guards_kernel(const uint8_t* memory, int64_t front, int64_t back, int64_t total,
                              Verdict* verdict) {
  EACH(i, front) if (memory[i] != 0xFF) verdict->outside = 1;
  EACH(i, total - back) if (memory[back + i] != 0xFF) verdict->outside = 1;
}
__global__ void differ_kernel(const uint8_t* a, const uint8_t* b, int64_t bytes, unsigned* differ) {
  EACH(i, bytes) if (a[i] != b[i])* differ = 1;
}

// One result of a case: where it is, what it was before, and how it is judged.
class Output {
 public:
  template <class F>
  Output(const char* name, const Buffer& buffer, int64_t columns, F f, Buffer initial = {})
      : name(name), buffer(buffer), columns(columns), initial(initial) {
    const Dtype dtype = buffer.dtype;
    const void* const data = buffer.data();
    const int64_t count = buffer.count;
    compare = [=](Verdict* v) {
      compare_kernel<<<grid_of(count), 256>>>(f, dtype, data, count, v);
      explain_kernel<<<1, 1>>>(f, dtype, data, v);
    };
  }
  // Only its guards and its bits are looked at.
  Output(const char* name, const Buffer& buffer) : name(name), buffer(buffer), columns(1) {}
  void prepare() const {
    buffer.clear();
    if (initial.memory) buffer.copy_from(initial);
  }
  const char* name;
  Buffer buffer;
  int64_t columns;
  Buffer initial;
  std::function<void(Verdict*)> compare;
};

void differ(const Buffer& a, const Buffer& b, unsigned* verdict) {
  differ_kernel<<<grid_of(a.bytes()), 256>>>(reinterpret_cast<uint8_t*>(a.data()),
                                             reinterpret_cast<uint8_t*>(b.data()), a.bytes(), verdict);
}

// The results of the first tile of a case, which those of the others must equal.
using Baselines = std::vector<Buffer>;

void judge(const std::string& group, const std::string& what, const std::vector<Output>& outputs,
           const Verdict* verdicts) {
  for (size_t o = 0; o < outputs.size(); ++o) {
    const Verdict& v = verdicts[o];
    const uint32_t bits = static_cast<uint32_t>(v.worst >> 32), index = static_cast<uint32_t>(v.worst);
    float ratio;
    std::memcpy(&ratio, &bits, 4);
    group_of(group).worst = std::max<double>(group_of(group).worst, ratio);
    const std::string where = what + " " + outputs[o].name;
    expect(ratio <= 1, group,
           ratio <= 1 ? ""
                      : text("%s (row %lld, column %lld): expected %.9g, got %.9g, bound %.3g", where.c_str(),
                             static_cast<long long>(index / outputs[o].columns),
                             static_cast<long long>(index % outputs[o].columns), v.want, v.got, v.bound));
    expect(!v.outside, group, where + ": written outside");
    expect(!v.runs_differ, group, where + ": differs from run to run");
    expect(!v.tiles_differ, group, where + ": differs from tile to tile");
  }
}

// Runs twice and judges every output. `must_run`: else the kernel may say that it does not have the case.
template <class Run>
bool check(const std::string& group, const std::string& what, const Run& run,
           const std::vector<Output>& outputs, Baselines* first = nullptr, bool must_run = true) {
  static Verdict *device = nullptr, *host = nullptr;
  constexpr size_t kMost = 4;
  if (!device) {
    must(cudaMalloc(&device, kMost * sizeof(Verdict)), "cudaMalloc");
    must(cudaMallocHost(&host, kMost * sizeof(Verdict)), "cudaMallocHost");
  }
  must(cudaMemsetAsync(device, 0, kMost * sizeof(Verdict), nullptr), "cudaMemset");
  Scope scope;
  std::vector<Buffer> copies;
  for (int turn = 0; turn < 2; ++turn) {
    for (const Output& o : outputs) o.prepare();
    const cudaError_t status = run();
    if (status == cudaErrorNotSupported && !must_run) return ++group_of(group).refused, false;
    expect(status == cudaSuccess, group, what + ": " + cudaGetErrorString(status));
    if (status != cudaSuccess) return cudaGetLastError(), false;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Output& o = outputs[i];
      if (turn == 1) {
        differ(o.buffer, copies[i], &device[i].runs_differ);
        continue;
      }
      if (o.compare) o.compare(device + i);
      guards_kernel<<<1, 256>>>(reinterpret_cast<uint8_t*>(o.buffer.memory), o.buffer.front(),
                                o.buffer.front() + o.buffer.bytes(), o.buffer.total(), device + i);
      copies.emplace_back(o.buffer.dtype, o.buffer.count);
      copies[i].copy_from(o.buffer);
      if (first && first->size() == outputs.size()) differ(o.buffer, (*first)[i], &device[i].tiles_differ);
    }
  }
  must(cudaMemcpyAsync(host, device, kMost * sizeof(Verdict), cudaMemcpyDeviceToHost, nullptr), what);
  must(cudaGetLastError(), what);
  finish_within(5, group + ": " + what);
  judge(group, what, outputs, host);
  if (first && first->empty()) {  // kept beyond this case: the caller's scope takes it back
    *first = copies;
    scope.mark = arena.mark();
  }
  return true;
}

// ---- the reference: c = a w^T + bias in fp64, and the sum of the magnitudes ----

struct Case {
  int64_t batch, tokens, inputs, outputs;
};

struct Reference {
  Gemm gemm;
  const double* c = nullptr;
  const float* error = nullptr;  // how far off an fp32 sum may be
  GemmSizes sizes() const { return gemm.sizes; }
};

// fp32 sums are off by about 1e-7 of the magnitudes; of e4m3 the tensor cores keep 13 bits of what they add.
double accuracy_of(Dtype dtype) {
  return dtype == Dtype::e4m3 ? 1e-3 : 1e-5;
}

constexpr int kTile = 64, kStep = 16;
// 256 threads, 4 x 4 values each.
__global__ void reference_kernel(Gemm p, double accuracy, double* c, float* error) {
  __shared__ float a[kStep][kTile + 1], w[kStep][kTile + 1];
  const int64_t rows = p.sizes.batch * p.sizes.tokens, N = p.sizes.outputs, K = p.sizes.inputs;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kTile,
                column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  double sum[4][4] = {};
  float size[4][4] = {};
  for (int64_t k = 0; k < K; k += kStep) {
    for (int i = threadIdx.x; i < kTile * kStep; i += 256) {
      const int64_t kk = k + i % kStep, r = row + i / kStep, n = column + i / kStep;
      a[i % kStep][i / kStep] =
          r < rows && kk < K ? static_cast<float>(value_of(p.dtype, p.a, r * K + kk)) : 0;
      w[i % kStep][i / kStep] = n < N && kk < K ? static_cast<float>(value_of(p.dtype, p.w, n * K + kk)) : 0;
    }
    __syncthreads();
    for (int kk = 0; kk < kStep; ++kk)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
          const float u = a[kk][y + 16 * i], v = w[kk][x + 16 * j];
          sum[i][j] += static_cast<double>(u) * v;
          size[i][j] += fabsf(u * v);
        }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const int64_t r = row + y + 16 * i, n = column + x + 16 * j;
      if (r >= rows || n >= N) continue;
      double scale = 1;
      if (p.dtype == Dtype::e4m3) scale = static_cast<double>(p.a_scale[r]) * p.w_scale[n];
      const double bias = p.bias ? p.bias[n] : 0;
      c[r * N + n] = sum[i][j] * scale + bias;
      error[r * N + n] = static_cast<float>(accuracy * size[i][j] * scale + 1e-6 * fabs(bias) + 1e-9);
    }
}

Reference reference_of(Dtype dtype, const Case& s, bool bias) {
  Reference r;
  const float sd = 1.5f / std::sqrt(static_cast<float>(s.inputs));
  const float stretch = dtype == Dtype::e4m3 ? 64.0f : 1.0f;  // e4m3 values stand for value * scale
  const int64_t rows = s.batch * s.tokens;
  const Buffer a(dtype, rows * s.inputs), w(dtype, s.outputs * s.inputs), b(Dtype::fp32, s.outputs);
  const Buffer a_scale(Dtype::fp32, rows), w_scale(Dtype::fp32, s.outputs);
  draw(a, stretch), draw(w, dtype == Dtype::e4m3 ? stretch : sd), draw(b, 0.5f);
  draw(a_scale, 0.1f / stretch, 1 / stretch), draw(w_scale, 0.1f * sd / stretch, sd / stretch);
  r.gemm.sizes = {s.batch, s.tokens, s.inputs, s.outputs};
  r.gemm.dtype = dtype, r.gemm.a = a.data(), r.gemm.w = w.data();
  r.gemm.bias = bias ? b.floats() : nullptr;
  if (dtype == Dtype::e4m3) r.gemm.a_scale = a_scale.floats(), r.gemm.w_scale = w_scale.floats();
  double* const c = static_cast<double*>(arena.take(rows * s.outputs * 8));
  float* const error = static_cast<float*>(arena.take(rows * s.outputs * 4));
  const dim3 grid(static_cast<unsigned>((s.outputs + kTile - 1) / kTile),
                  static_cast<unsigned>((rows + kTile - 1) / kTile));
  reference_kernel<<<grid, 256>>>(r.gemm, accuracy_of(dtype), c, error);
  must(cudaGetLastError(), "the reference");
  r.c = c, r.error = error;
  return r;
}

std::string sizes_of(const Reference& r, int tile) {
  const GemmSizes s = r.sizes();
  return text("%lldx%lld, K %lld, N %lld, bias %d, tile %d,", static_cast<long long>(s.batch),
              static_cast<long long>(s.tokens), static_cast<long long>(s.inputs),
              static_cast<long long>(s.outputs), r.gemm.bias ? 1 : 0, tile);
}

// f(product, tile) for the chosen tile and each that fits; with baselines that live as long.
template <class F>
void each_tile(const Reference& r, const F& f, bool any = false) {
  Scope scope;
  Baselines first;
  for (int tile = 0; tile <= gemm_tiles(); ++tile) {
    if (tile > 0 && !any && !gemm_tile_fits(r.sizes(), tile - 1)) continue;
    Gemm p = r.gemm;
    p.tile = tile;
    f(p, sizes_of(r, tile), &first);
  }
}

Dtype wide(Dtype dtype) {  // of what is kept beside e4m3
  return dtype == Dtype::e4m3 ? Dtype::bf16 : dtype;
}
// The pairs of input and output that sampling and training use; others may be refused.
bool needed(Dtype in, Dtype out) {
  return out == in || (in == Dtype::e4m3 && out == Dtype::bf16);
}

__host__ __device__ double gelu_of(double x) {
  return 0.5 * x * erfc(-x * 0.70710678118654752);
}
constexpr double kGeluSlope = 1.13;  // the steepest
// The error of the short functions: of those with the hardware's tanh, 2^-11 of it, and that of their
// polynomial, which in bf16 is a longer one where sums are taken.
__host__ __device__ double gelu_error(Dtype in, double x, bool summed) {
  return in == Dtype::fp16 ? 2e-6 : fabs(x) * 2.7e-4 + (summed && in == Dtype::bf16 ? 3e-5 : 3.5e-4);
}
__host__ __device__ double gate_error(Dtype in) {
  return in == Dtype::fp16 ? 2e-6 : 2.7e-4;
}

struct PlainWant {
  const double* c;
  const float* error;
  __device__ Expected operator()(int64_t i) const { return {c[i], error[i]}; }
};
struct StoreWant {
  const double* c;
  const float* error;
  bool gelu;
  float scale;
  Dtype in;
  __device__ Expected operator()(int64_t i) const {
    if (!gelu) return {c[i], error[i], scale};
    return {gelu_of(c[i]), kGeluSlope * error[i] + gelu_error(in, c[i], false), scale};
  }
};

void check_store(const Reference& r) {
  const std::string group = std::string("store ") + name_of(r.gemm.dtype);
  if (!wanted(group)) return;
  const int64_t count = r.sizes().rows() * r.sizes().outputs, N = r.sizes().outputs;
  for (const Activation activation : {Activation::none, Activation::gelu})
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::e4m3})
      for (const bool keep : {false, true}) {
        if (keep && !needed(r.gemm.dtype, dtype)) continue;
        Scope scope;
        const float scale = dtype == Dtype::e4m3 ? 0.0093f : 1.0f;  // a few values are beyond the greatest
        const bool gelu = activation == Activation::gelu;
        const Buffer out(dtype, count), before(wide(r.gemm.dtype), count);
        std::vector<Output> outputs{{"out", out, N, StoreWant{r.c, r.error, gelu, scale, r.gemm.dtype}}};
        if (keep) outputs.emplace_back("before", before, N, PlainWant{r.c, r.error});
        const StoreEpilogue epilogue{activation, dtype, out.data(), upload(std::vector<float>{scale}),
                                     keep ? before.data() : nullptr};
        each_tile(r, [&](const Gemm& p, const std::string& sizes, Baselines* first) {
          check(
              group,
              text("%s %s to %s%s", sizes.c_str(), gelu ? "gelu" : "none", name_of(dtype),
                   keep ? " with before" : ""),
              [&] { return gemm_store(p, epilogue, nullptr); }, outputs, first, needed(r.gemm.dtype, dtype));
        });
      }
}

struct RunsOf {
  int64_t tokens, run_tokens, runs;
  RunsOf(const GemmSizes& s, int64_t run_tokens_)
      : tokens(s.tokens), run_tokens(run_tokens_ > 0 ? std::min(run_tokens_, s.tokens) : s.tokens) {
    runs = (tokens + run_tokens - 1) / run_tokens;
  }
  __host__ __device__ int64_t of(int64_t row) const {
    return row / tokens * runs + row % tokens / run_tokens;
  }
};

struct GateWant {
  const double* c;
  const float *error, *H, *scale;
  RunsOf runs;
  int64_t N;
  Dtype in;
  __device__ Expected operator()(int64_t i) const {
    const int64_t row = i / N;
    const double h = H[runs.of(row) * N + i % N];
    return {h / (1 + exp(-c[i])), fabs(h) * (0.25 * error[i] + gate_error(in)) + 1e-12,
            scale ? scale[row / runs.tokens] : 1.0};
  }
};

void check_gate(const Reference& r, const std::string& group, const std::vector<int64_t>& lengths) {
  if (!wanted(group)) return;
  const GemmSizes s = r.sizes();
  const int64_t count = s.rows() * s.outputs, N = s.outputs;
  for (const int64_t run_tokens : lengths)
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::e4m3})
      for (const bool keep : {false, true}) {
        if ((keep || run_tokens != 0) && dtype != r.gemm.dtype) continue;
        Scope scope;
        const RunsOf runs(s, run_tokens);
        const Buffer H(Dtype::fp32, s.batch * runs.runs * N), scale(Dtype::fp32, s.batch);
        draw(H, 1.0f), draw(scale, 0.001f, 0.008f);
        const Buffer out(dtype, count), before(wide(r.gemm.dtype), count);
        const bool scaled = dtype == Dtype::e4m3;
        std::vector<Output> outputs{
            {"out", out, N,
             GateWant{r.c, r.error, H.floats(), scaled ? scale.floats() : nullptr, runs, N, r.gemm.dtype}}};
        if (keep) outputs.emplace_back("before", before, N, PlainWant{r.c, r.error});
        const GateEpilogue epilogue{{run_tokens},
                                    H.floats(),
                                    dtype,
                                    out.data(),
                                    scaled ? scale.floats() : nullptr,
                                    keep ? before.data() : nullptr};
        each_tile(r, [&](const Gemm& p, const std::string& sizes, Baselines* first) {
          check(
              group,
              text("%s runs of %d to %s%s", sizes.c_str(), static_cast<int>(run_tokens), name_of(dtype),
                   keep ? " with before" : ""),
              [&] { return gemm_gate(p, epilogue, nullptr); }, outputs, first, dtype == r.gemm.dtype);
        });
      }
}

void check_gate(const Reference& r) {
  check_gate(r, std::string("gate ") + name_of(r.gemm.dtype), {0, 16, 100, 128, 256, 360});
}

// Runs that begin anywhere in a tile, of sequences that do: one, two or any number of them in a tile.
void check_gate_runs(Dtype dtype) {
  const std::string group = std::string("runs of a gate ") + name_of(dtype);
  if (!wanted(group)) return;
  for (const Case& s : {Case{3, 360, 80, 96}, {3, 720, 32, 160}, {1, 720, 208, 200}, {5, 200, 64, 32}})
    for (const bool bias : {true, false}) {
      if (quick && !bias) continue;
      Scope scope;
      check_gate(reference_of(dtype, s, bias), group, {100, 128, 200, 360, 720});
    }
}

struct ResidualWant {
  const double* c;
  const float *error, *x, *gate;
  int64_t tokens, stride, N;
  int additions = 1;  // of one value
  __device__ Expected operator()(int64_t i) const {
    const double g = gate[i / N / tokens * stride + i % N], before = x[i];
    const double rounded = fabs(before) + 2 * fabs(g * c[i]) + (additions > 1 ? fabs(g) : 0);
    return {before + g * c[i], fabs(g) * error[i] + 6e-8 * additions * rounded};
  }
};

// `splits` may be those of a product that the caller has given what they need.
void check_residual(const Reference& r, const std::string& group, const GemmSplits& splits = {}) {
  if (!wanted(group)) return;
  const GemmSizes s = r.sizes();
  const int64_t count = s.rows() * s.outputs, N = s.outputs;
  for (const int64_t stride : {N, 3 * N}) {
    Scope scope;
    const Buffer gate(Dtype::fp32, s.batch * stride), initial(Dtype::fp32, count), x(Dtype::fp32, count);
    draw(gate, 1.0f), draw(initial, 2.0f);
    const ResidualWant want{r.c, r.error, initial.floats(), gate.floats(), s.tokens, stride, N, splits.count};
    const std::vector<Output> outputs{{"x", x, N, want, initial}};
    const ResidualEpilogue epilogue{x.floats(), gate.floats(), stride};
    each_tile(r, [&](Gemm p, const std::string& sizes, Baselines* first) {
      p.splits = splits;
      check(
          group, text("%s %d splits, gates %d apart", sizes.c_str(), splits.count, static_cast<int>(stride)),
          [&] { return gemm_residual(p, epilogue, nullptr); }, outputs, first);
    });
  }
}

// ---- splits ----

bool all_zero(const Buffer& b) {
  std::vector<char> bytes(static_cast<size_t>(b.bytes()));
  must(cudaMemcpy(bytes.data(), b.data(), bytes.size(), cudaMemcpyDeviceToHost), "counters");
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
}

void check_split_stores(const Reference& r, const std::string& group, const GemmSplits& splits) {
  const int64_t count = r.sizes().rows() * r.sizes().outputs, N = r.sizes().outputs;
  for (const Activation activation : {Activation::none, Activation::gelu})
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::e4m3}) {
      if (!needed(r.gemm.dtype, dtype)) continue;
      Scope scope;
      const float scale = dtype == Dtype::e4m3 ? 0.0093f : 1.0f;
      const bool gelu = activation == Activation::gelu;
      const Buffer out(dtype, count);
      const std::vector<Output> outputs{{"out", out, N, StoreWant{r.c, r.error, gelu, scale, r.gemm.dtype}}};
      const StoreEpilogue epilogue{activation, dtype, out.data(), upload(std::vector<float>{scale})};
      each_tile(r, [&](Gemm p, const std::string& sizes, Baselines* first) {
        p.splits = splits, p.steady = true;
        check(
            group,
            text("%s %d splits, %s to %s", sizes.c_str(), splits.count, gelu ? "gelu" : "none",
                 name_of(dtype)),
            [&] { return gemm_store(p, epilogue, nullptr); }, outputs, first);
      });
    }
}

// Every number of splits has its own bits, with every tile and on every run. The counters are cleared once:
// what one product leaves, the next one finds. The sums begin as not-a-number.
void check_splits(Dtype dtype) {
  const std::string group = std::string("splits ") + name_of(dtype);
  if (!wanted(group)) return;
  std::vector<Case> cases{{2, 360, 1152, 96}, {3, 100, 520, 200}, {1, 1, 256, 8}};
  if (!quick) cases.insert(cases.end(), {{2, 360, 4608, 1152}, {1, 4097, 320, 384}, {3, 1000, 640, 1152}});
  for (Case s : cases) {
    if (dtype == Dtype::e4m3) s.inputs = s.inputs / 16 * 16;
    Scope scope;
    const Reference r = reference_of(dtype, s, s.outputs != 200);
    const GemmSplitBytes bytes = gemm_split_bytes(r.sizes());
    const Buffer counters(Dtype::fp32, bytes.counters / 4), sums(Dtype::fp32, bytes.sums / 4);
    must(cudaMemsetAsync(counters.data(), 0, bytes.counters, nullptr), "counters");
    const int64_t steps = (s.inputs * bytes_of(dtype) + 127) / 128;
    for (const int count : {2, 3, 4, 7}) {
      if (count > steps || (quick && count == 3)) continue;
      GemmSplits splits;
      splits.count = count;
      splits.counters = reinterpret_cast<uint32_t*>(counters.data()), splits.counters_bytes = bytes.counters;
      check_residual(r, group, splits);
      splits.sums = sums.data(), splits.sums_bytes = bytes.sums;
      check_split_stores(r, group, splits);
      const std::string what = text("%s %d splits: counters", sizes_of(r, 0).c_str(), count);
      expect(all_zero(counters), group, what + " are not zeros afterwards");
    }
    for (const Buffer* b : {&counters, &sums}) {
      std::vector<uint8_t> all(static_cast<size_t>(b->total()));
      must(cudaMemcpy(all.data(), b->memory, all.size(), cudaMemcpyDeviceToHost), group);
      const auto guard = [](uint8_t byte) { return byte == 0xFF; };
      expect(std::all_of(all.begin(), all.begin() + b->front(), guard) &&
                 std::all_of(all.begin() + b->front() + b->bytes(), all.end(), guard),
             group, sizes_of(r, 0) + " counters or sums: written outside");
    }
  }
}

// The gate of sums of tiles: what fold_sums would have made of them.
void check_gate_of_sums(const Reference& r) {
  const std::string group = std::string("gate of sums ") + name_of(r.gemm.dtype);
  const GemmSizes s = r.sizes();
  if (!wanted(group) || r.gemm.dtype == Dtype::e4m3 || !gate_takes_sums(s, {})) return;
  Scope scope;
  const int64_t count = s.rows() * s.outputs, N = s.outputs, tiles = s.tokens / 128;
  const Buffer partial(Dtype::fp32, sums_slots(s, {}) * N), H(Dtype::fp32, s.batch * N);
  const Buffer out(r.gemm.dtype, count);
  draw(partial, 30.0f);
  std::vector<float> sums(static_cast<size_t>(sums_slots(s, {}) * N)),
      means(static_cast<size_t>(s.batch * N));
  must(cudaMemcpy(sums.data(), partial.data(), 4 * sums.size(), cudaMemcpyDeviceToHost), "partial");
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0;
      for (int64_t t = 0; t < tiles; ++t) sum += sums[static_cast<size_t>((b * tiles + t + b) * N + n)];
      means[static_cast<size_t>(b * N + n)] = sum / static_cast<float>(s.tokens);
    }
  must(cudaMemcpy(H.data(), means.data(), 4 * means.size(), cudaMemcpyHostToDevice), "means");
  GateEpilogue epilogue;
  epilogue.partial = partial.floats(), epilogue.out_dtype = r.gemm.dtype, epilogue.out = out.data();
  const std::vector<Output> outputs{
      {"out", out, N, GateWant{r.c, r.error, H.floats(), nullptr, RunsOf(s, 0), N, r.gemm.dtype}}};
  each_tile(r, [&](Gemm p, const std::string& sizes, Baselines* first) {
    p.steady = true;
    check(
        group, sizes, [&] { return gemm_gate(p, epilogue, nullptr); }, outputs, first);
  });
}

// ---- sums ----

// p and its error from c, per row and feature; layout (rows, i * D + j).
__global__ void powers_kernel(Reference r, int order, double* p, double* error) {
  const int64_t N = r.gemm.sizes.outputs, D = N / order, rows = r.gemm.sizes.batch * r.gemm.sizes.tokens;
  EACH(at, rows * D) {
    double value = 1, off = 0;
    for (int i = 0; i < order; ++i) {
      const int64_t place = at / D * N + i * D + at % D;
      const double g = gelu_of(r.c[place]),
                   g_off = kGeluSlope * r.error[place] + gelu_error(r.gemm.dtype, r.c[place], true);
      off = off * (fabs(g) + g_off) + fabs(value) * g_off;
      value *= g;
      p[place] = value, error[place] = off + 3e-6 * fabs(value);  // the sum over rows is fp32
    }
  }
}
__global__ void run_sums_kernel(RunsOf runs, int64_t batch, int64_t N, const uint8_t* visible,
                                const double* p, const double* error, double* sums, double* errors,
                                double* counts) {
  EACH(at, batch * runs.runs * N) {
    const int64_t run = at / N, first = run / runs.runs * runs.tokens + run % runs.runs * runs.run_tokens;
    const int64_t end = min(first + runs.run_tokens, (run / runs.runs + 1) * runs.tokens);
    double sum = 0, off = 0, count = 0;
    for (int64_t row = first; row < end; ++row) {
      if (visible && !visible[row]) continue;
      sum += p[row * N + at % N], off += error[row * N + at % N], ++count;
    }
    sums[at] = sum, errors[at] = off;
    if (at % N == 0) counts[run] = count;
  }
}

struct FoldWant {
  RunsOf runs;
  int64_t N;
  const double *sums, *errors, *counts;
  bool causal, counted;
  int64_t window;
  __device__ Expected operator()(int64_t i) const {
    const int64_t run = i / N, start = run / runs.runs * runs.runs;
    const int64_t from = !causal ? run : window > 0 ? max(start, run - window + 1) : start;
    double sum = 0, error = 0, count = counted ? 1e-7 : 0;
    for (int64_t q = from; q <= run; ++q) {
      sum += sums[q * N + i % N], error += errors[q * N + i % N];
      count += counts[q];
    }
    return {sum / count, error / count + 1e-6 * fabs(sum / count) + 1e-12};
  }
};
// The greatest |H| of each sequence / 448, a block a sequence: the value, then what it may be off by.
__global__ void largest_kernel(FoldWant f, double* largest) {
  __shared__ double values[256], errors[256];
  double value = 0, error = 0;
  const int64_t each = f.runs.runs * f.N;
  for (int64_t i = threadIdx.x; i < each; i += 256) {
    const Expected e = f(blockIdx.x * each + i);
    value = max(value, fabs(e.value)), error = max(error, e.error);
  }
  values[threadIdx.x] = value, errors[threadIdx.x] = error;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 1; i < 256; ++i) value = max(value, values[i]), error = max(error, errors[i]);
  // 1e-12: a scale is never 0, so that one may divide by it
  largest[2 * blockIdx.x] = value / 448, largest[2 * blockIdx.x + 1] = (error + 1e-7 * value) / 448 + 1e-12;
}
struct LargestWant {
  const double* largest;
  __device__ Expected operator()(int64_t b) const { return {largest[2 * b], largest[2 * b + 1]}; }
};
__global__ void floats_kernel(const double* from, float* to, int64_t count) {
  EACH(i, count) to[i] = static_cast<float>(from[i]);
}
__global__ void gather_kernel(const char* from, char* to, const int64_t* rows, int64_t count, int64_t bytes) {
  EACH(i, count * bytes) to[i] = from[rows[i / bytes] * bytes + i % bytes];
}
Buffer gathered(const void* from, const int64_t* rows, int64_t count, Dtype dtype, int64_t columns) {
  const Buffer to(dtype, count * columns);
  gather_kernel<<<grid_of(to.bytes()), 256>>>(static_cast<const char*>(from), to.data(), rows, count,
                                              columns * bytes_of(dtype));
  return to;
}

// The weights in the kernel's order of rows, and that order.
struct PreparedWeight {
  Gemm gemm;
  const int64_t* rows;
};
PreparedWeight prepared_of(const Reference& r, int order) {
  Gemm p = r.gemm;
  const int64_t N = p.sizes.outputs;
  std::vector<int64_t> rows(N);
  for (int64_t i = 0; i < N; ++i) rows[i] = sums_row(i, order, N / order);
  const int64_t* const from = upload(rows);
  p.w = gathered(p.w, from, N, p.dtype, p.sizes.inputs).data();
  if (p.bias) p.bias = gathered(p.bias, from, N, Dtype::fp32, 1).floats();
  if (p.w_scale) p.w_scale = gathered(p.w_scale, from, N, Dtype::fp32, 1).floats();
  return {p, from};
}

struct Powers {
  const double *p, *error;
};
struct RunSums {
  const double *sums, *errors, *counts;
  const float* counts32;
};
RunSums run_sums(const GemmSizes& s, const RunsOf& runs, const uint8_t* visible, const Powers& powers) {
  const int64_t count = s.batch * runs.runs * s.outputs;
  double* const sums = static_cast<double*>(arena.take(8 * count));
  double* const errors = static_cast<double*>(arena.take(8 * count));
  double* const counts = static_cast<double*>(arena.take(8 * s.batch * runs.runs));
  float* const counts32 = static_cast<float*>(arena.take(4 * s.batch * runs.runs));
  run_sums_kernel<<<grid_of(count), 256>>>(runs, s.batch, s.outputs, visible, powers.p, powers.error, sums,
                                           errors, counts);
  floats_kernel<<<grid_of(s.batch * runs.runs), 256>>>(counts, counts32, s.batch * runs.runs);
  return {sums, errors, counts, counts32};
}

struct Fold {
  bool causal;
  int64_t window;
};

void check_fold(const Reference& r, const PreparedWeight& prepared, int order, int64_t run_tokens,
                const uint8_t* visible, const Powers& powers) {
  const GemmSizes s = r.sizes();
  const int64_t N = s.outputs;
  const std::string group = std::string("sums ") + name_of(r.gemm.dtype);
  const RunsOf runs(s, run_tokens);
  const RunSums want = run_sums(s, runs, visible, powers);
  const Buffer partial(Dtype::fp32, sums_slots(s, {run_tokens}) * N);
  const Buffer H(Dtype::fp32, s.batch * runs.runs * N), largest(Dtype::fp32, s.batch);
  double* const greatest = static_cast<double*>(arena.take(16 * s.batch));
  for (const Fold fold : {Fold{false, 0}, Fold{true, 0}, Fold{true, 1}, Fold{true, 3}}) {
    if (fold.causal && runs.runs == 1) continue;
    const FoldWant f{runs,        N,           want.sums,          want.errors,
                     want.counts, fold.causal, visible != nullptr, fold.window};
    largest_kernel<<<static_cast<unsigned>(s.batch), 256>>>(f, greatest);
    std::vector<Output> outputs{{"H", H, N, f}};
    outputs.emplace_back("partial", partial);
    outputs.emplace_back("largest", largest, 1, LargestWant{greatest});
    FoldParams params{s, {run_tokens}, partial.floats(), fold.causal, fold.window};
    params.counts = visible ? want.counts32 : nullptr, params.H = H.floats();
    params.largest = largest.floats();
    const SumsEpilogue epilogue{order, {run_tokens}, visible, partial.floats()};
    const auto checked = [&](const Gemm& weights) {
      each_tile(
          r,
          [&](Gemm p, const std::string& sizes, Baselines* first) {
            Gemm q = weights;
            q.tile = p.tile;
            check(
                group,
                text("%s order %d%s, runs of %d%s%s, window %d", sizes.c_str(), order,
                     weights.factors ? " of the paper's layout" : "", static_cast<int>(run_tokens),
                     visible ? ", visible" : "", fold.causal ? ", causal" : "",
                     static_cast<int>(fold.window)),
                [&] {
                  const cudaError_t status = gemm_sums(q, epilogue, nullptr);
                  return status != cudaSuccess ? status : fold_sums(params, nullptr);
                },
                outputs, first);
          },
          true);
    };
    checked(prepared.gemm);
    if (order != 2 || r.gemm.dtype == Dtype::e4m3) continue;
    Gemm paper = r.gemm;
    paper.factors = 2;
    checked(paper);
  }
}

void check_sums(Dtype dtype, const Case& s, int order, bool bias) {
  if (!wanted(std::string("sums ") + name_of(dtype))) return;
  Scope scope;
  const Reference r = reference_of(dtype, s, bias);
  const int64_t rows = r.sizes().rows(), count = rows * s.outputs;
  double* const p = static_cast<double*>(arena.take(8 * count));
  double* const error = static_cast<double*>(arena.take(8 * count));
  powers_kernel<<<grid_of(count / order), 256>>>(r, order, p, error);
  const PreparedWeight q = prepared_of(r, order);
  std::vector<uint8_t> seen(rows);
  for (int64_t row = 0; row < rows; ++row)  // whole runs of 16 are hidden, and single rows
    seen[row] = (row * 2654435761u >> 9) % 3 != 0 && row / 16 % 5 != 2;
  const uint8_t* const visible = upload(seen);
  for (const int64_t run_tokens : {0, 16, 100, 360}) {
    if (run_tokens >= s.tokens && run_tokens != 360) continue;  // 360 stays: longer than a sequence
    for (const uint8_t* mask : {static_cast<const uint8_t*>(nullptr), visible}) {
      Scope inner;
      check_fold(r, q, order, run_tokens, mask, {p, error});
    }
  }
}

// ---- what must be refused ----

void check_refusals() {
  const std::string group = "refusals";
  if (!wanted(group)) return;
  Scope scope;
  const Buffer a(Dtype::bf16, 4096), w(Dtype::bf16, 65536), scale(Dtype::fp32, 1024), out(Dtype::fp32, 65536);
  draw(a, 1), draw(w, 1), draw(scale, 1);
  Gemm good;
  good.sizes = {1, 16, 64, 48}, good.a = a.data(), good.w = w.data();
  const StoreEpilogue store{Activation::none, Dtype::bf16, out.data()};
  const auto refused = [&](const char* what, Gemm p, StoreEpilogue epilogue, int order = 0) {
    const SumsEpilogue sums{order, {}, nullptr, out.floats()};
    const cudaError_t status = order ? gemm_sums(p, sums, nullptr) : gemm_store(p, epilogue, nullptr);
    cudaGetLastError();
    expect(status != cudaSuccess, group, std::string(what) + " was taken");
    finish_within(5, what);
  };
  expect(gemm_supported(good), group, "16 rows, K 64, N 48 is not supported");
  const auto with = [&](auto change) {
    Gemm p = good;
    change(p);
    return p;
  };
  refused("K of 24 bytes", with([](Gemm& p) { p.sizes.inputs = 12; }), store);
  refused("e4m3: K of 72 bytes", with([&](Gemm& p) {
            p.sizes.inputs = 72, p.dtype = Dtype::e4m3, p.a_scale = p.w_scale = scale.floats();
          }),
          store);
  refused("e4m3 without scales", with([](Gemm& p) { p.dtype = Dtype::e4m3; }), store);
  refused("fp32 inputs", with([](Gemm& p) { p.dtype = Dtype::fp32; }), store);
  refused("a off alignment", with([&](Gemm& p) { p.a = a.data() + 8; }), store);
  refused("w off alignment", with([&](Gemm& p) { p.w = w.data() + 2; }), store);
  refused("a tile too many", with([](Gemm& p) { p.tile = gemm_tiles() + 1; }), store);
  refused("a negative K", with([](Gemm& p) { p.sizes.inputs = -64; }), store);
  refused("negative rows", with([](Gemm& p) { p.sizes.batch = -1; }), store);
  refused("no out", good, StoreEpilogue{});
  refused("factors of a plain product", with([](Gemm& p) { p.factors = 2; }), store);
  refused("sums of order 4 from the paper's layout",
          with([](Gemm& p) { p.sizes.outputs = 64, p.factors = 4; }), store, 4);
  refused("sums of order 5", with([](Gemm& p) { p.sizes.outputs = 40; }), store, 5);
  refused("sums of order 4 with D 12", good, store, 4);
  refused("sums of order 3 with N not a multiple", with([](Gemm& p) { p.sizes.outputs = 64; }), store, 3);
  const GemmSplitBytes need = gemm_split_bytes(good.sizes);
  const auto with_splits = [&](auto change) {
    return with([&](Gemm& p) {
      p.sizes.inputs = 256;  // 4 steps
      p.splits = {2, reinterpret_cast<uint32_t*>(a.data()), need.counters, w.data(), need.sums};
      change(p.splits);
    });
  };
  refused("no splits", with_splits([](GemmSplits& s) { s.count = 0; }), store);
  refused("more splits than steps", with_splits([](GemmSplits& s) { s.count = 5; }), store);
  refused("splits without counters", with_splits([](GemmSplits& s) { s.counters = nullptr; }), store);
  refused("splits with few counters", with_splits([](GemmSplits& s) { --s.counters_bytes; }), store);
  refused("splits without sums", with_splits([](GemmSplits& s) { s.sums = nullptr; }), store);
  refused("splits with few sums", with_splits([](GemmSplits& s) { --s.sums_bytes; }), store);
  std::vector<uint8_t> bytes(out.total());
  must(cudaMemcpy(bytes.data(), out.memory, bytes.size(), cudaMemcpyDeviceToHost), group);
  expect(std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0xFF; }), group,
         "a refused product wrote");
}

void check_choices() {
  const std::string group = "choices";
  if (!wanted(group)) return;
  for (const int64_t rows : {1, 100, 1024, 9216, 65536, 1000000})
    for (const int64_t N : {8, 1152, 4608})
      for (const int processors : {1, 132, 1000}) {
        const int tile = choose_gemm_tile({1, rows, 1152, N}, processors);
        expect(tile >= 0 && tile < gemm_tiles(), group, "a tile that there is not");
      }
  const auto splits = [&](int64_t rows, int64_t K, int64_t N, Dtype dtype, int want) {
    const int got = gemm_splits({1, rows, K, N}, dtype);
    expect(got == want, group,
           text("%d rows, K %d, N %d in %s: expected %d splits, got %d", static_cast<int>(rows),
                static_cast<int>(K), static_cast<int>(N), name_of(dtype), want, got));
  };
  splits(720, 4608, 1152, Dtype::bf16, 2), splits(720, 4608, 1152, Dtype::e4m3, 2);
  splits(360, 4608, 1152, Dtype::bf16, 4), splits(360, 4608, 1152, Dtype::e4m3, 3);
  splits(720, 1152, 4608, Dtype::bf16, 1), splits(720, 1152, 1152, Dtype::bf16, 1);
  splits(7200, 4608, 1152, Dtype::bf16, 1), splits(0, 4608, 1152, Dtype::bf16, 1);
  const auto runs = [&](int64_t batch, int64_t tokens, int64_t length, GateRuns want) {
    expect(gate_runs({batch, tokens, 64, 64}, {length}) == want, group,
           text("%d sequences of %d tokens, runs of %d", static_cast<int>(batch), static_cast<int>(tokens),
                static_cast<int>(length)));
  };
  runs(2, 3600, 360, GateRuns::two), runs(2, 360, 0, GateRuns::two), runs(4, 256, 0, GateRuns::one);
  runs(1, 300, 0, GateRuns::one), runs(1, 300, 128, GateRuns::one), runs(2, 300, 128, GateRuns::any);
  runs(1, 370, 180, GateRuns::two), runs(2, 370, 180, GateRuns::any), runs(1, 720, 100, GateRuns::any);
  runs(2, 328, 200, GateRuns::two), runs(2, 327, 200, GateRuns::any);
  for (const int order : kSumsOrders)
    for (const int64_t D : {8, 40, 384}) {
      std::vector<int> seen(order * D);
      for (int64_t r = 0; r < order * D; ++r) {
        const int64_t row = sums_row(r, order, D);
        if (row >= 0 && row < order * D) ++seen[row];
      }
      expect(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }), group,
             text("sums_row of order %d, D %d is no permutation", order, static_cast<int>(D)));
    }
}

// ---- the passes between ----

struct StreamCase {
  StreamNormParams p;
  const void* x0;  // x before
};

// One thread a row: x, then out and what it may be off by.
__global__ void stream_reference_kernel(StreamCase s, double* x, double* out, double* off, double* greatest,
                                        double* greatest_off) {
  const StreamNormParams& p = s.p;
  EACH(row, p.batch * p.tokens) {
    const int64_t d = p.width, first = row * d, at = row / p.tokens * p.stride;
    double sum = 0, squares = 0, largest = 0, peak = 0, most = 0;
    for (int64_t c = 0; c < d; ++c) {
      double value = static_cast<const float*>(s.x0)[first + c];
      if (p.y) value += p.gate[at + c] * value_of(p.y_dtype, p.y, first + c);
      x[first + c] = value, sum += value, largest = fmax(largest, fabs(value));
    }
    if (!p.out) continue;
    const double mean = sum / static_cast<double>(d);
    for (int64_t c = 0; c < d; ++c) squares += (x[first + c] - mean) * (x[first + c] - mean);
    const double rstd = 1 / sqrt(squares / static_cast<double>(d) + p.eps);
    for (int64_t c = 0; c < d; ++c) {
      const double z = (x[first + c] - mean) * rstd;
      out[first + c] = z * (1 + p.scale[at + c]) + p.shift[at + c];
      off[first + c] =
          2e-6 * (fabs(z) + rstd * largest) * fabs(1 + p.scale[at + c]) + 2e-7 * fabs(out[first + c]) + 1e-7;
      peak = fmax(peak, fabs(out[first + c])), most = fmax(most, off[first + c]);
    }
    greatest[row] = peak == 0 ? 448 : peak, greatest_off[row] = most;
  }
}
struct StreamWant {
  const double *value, *off;
  const float* scales;  // of rows, as they were written, or null
  int64_t width;
  __device__ Expected operator()(int64_t i) const {
    return {value[i], off ? off[i] : 3e-7 * fabs(value[i]) + 1e-6, scales ? scales[i / width] : 1.0};
  }
};
struct ScaleWant {
  const double *greatest, *off;  // off: null where it is exact
  __device__ Expected operator()(int64_t row) const {
    return {greatest[row] / 448, (off ? off[row] : 0) / 448 + 2e-7 * greatest[row] / 448};
  }
};

// Shifts put x, y, out or the modulation off their alignment, one bit each.
void check_stream(int64_t batch, int64_t tokens, int64_t width, Dtype y_dtype, bool add, Dtype out_dtype,
                  bool norm, int shifts) {
  Scope scope;
  const auto shift = [&](int bit) { return shifts >> bit & 1; };
  const int64_t count = batch * tokens * width, stride = (shifts ? 5 : 6) * width;
  const Buffer x0(Dtype::fp32, count), x(Dtype::fp32, count, shift(0)), y(y_dtype, count, shift(1));
  const Buffer out(out_dtype, count, shift(2)), modulation(Dtype::fp32, batch * stride, shift(3));
  const Buffer row_scale(Dtype::fp32, batch * tokens);
  draw(x0, 1.5f, 3.0f), draw(y, 1), draw(modulation, 0.7f);
  StreamNormParams p;
  p.batch = batch, p.tokens = tokens, p.width = width, p.x = x.floats(), p.eps = 1e-6f;
  p.y = add ? y.data() : nullptr, p.y_dtype = y_dtype, p.stride = stride;
  p.gate = modulation.floats(), p.scale = p.gate + width, p.shift = p.scale + width;
  p.out_dtype = out_dtype, p.out = norm ? out.data() : nullptr, p.row_scale = row_scale.floats();
  double* want[5];
  for (int i = 0; i < 5; ++i)
    want[i] = static_cast<double*>(arena.take(8 * (i < 3 ? count : batch * tokens)));
  stream_reference_kernel<<<static_cast<unsigned>((batch * tokens + 31) / 32), 32>>>(
      {p, x0.data()}, want[0], want[1], want[2], want[3], want[4]);
  std::vector<Output> outputs{{"x", x, width, StreamWant{want[0], nullptr, nullptr, width}, x0}};
  const bool scaled = norm && out_dtype == Dtype::e4m3;
  if (norm)
    outputs.emplace_back("out", out, width,
                         StreamWant{want[1], want[2], scaled ? row_scale.floats() : nullptr, width});
  if (scaled) outputs.emplace_back("row_scale", row_scale, 1, ScaleWant{want[3], want[4]});
  check(
      "stream norm",
      text("%dx%dx%d, y %s, out %s, shifts %d,", static_cast<int>(batch), static_cast<int>(tokens),
           static_cast<int>(width), add ? name_of(y_dtype) : "none", norm ? name_of(out_dtype) : "none",
           shifts),
      [&] { return stream_norm(p, nullptr); }, outputs);
}

void check_streams() {
  if (!wanted("stream norm")) return;
  const std::vector<int64_t> all{1,    2,    3,    4,    8,    100,  128,  384,  388, 768,
                                 1152, 1536, 1540, 2304, 4096, 4612, 8192, 8196, 9001};
  const std::vector<int64_t> few{4, 1152, 2304, 8196};
  for (const int64_t width : quick ? few : all)
    for (const Dtype y : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::e4m3})  // e4m3: none
      for (const Dtype out : {Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::e4m3}) {
        const bool add = y != Dtype::e4m3;
        const Dtype y_dtype = add ? y : Dtype::bf16;
        check_stream(3, 67, width, y_dtype, add, out, true, 0);
        if (out == Dtype::bf16 && add) check_stream(2, 9, width, y_dtype, add, out, false, 0);
        if (width == 1 || width == 1152 || width == 4096)
          for (const int shifts : {1, 2, 4, 8, 15})
            check_stream(2, 5, width, y_dtype, add, out, true, shifts);
      }
  check_stream(1, 1, 1152, Dtype::bf16, true, Dtype::bf16, true, 0);
  check_stream(4, 256, 1152, Dtype::bf16, true, Dtype::e4m3, true, 0);
  StreamNormParams bad;
  expect(stream_norm(bad, nullptr) == cudaSuccess, "stream norm", "no rows are refused");
  bad.batch = bad.tokens = bad.width = 1;
  expect(stream_norm(bad, nullptr) != cudaSuccess, "stream norm", "no x was taken");
}

struct QuantizeWant {
  Dtype dtype;
  const void* x;
  const float* scales;
  int64_t width;
  __device__ Expected operator()(int64_t i) const {
    const double value = value_of(dtype, x, i);
    return {value, 1e-6 * fabs(value), scales[i / width]};
  }
};
__global__ void greatest_kernel(Dtype dtype, const void* x, int64_t rows, int64_t width, double* greatest) {
  EACH(row, rows) {
    double peak = 0;
    for (int64_t c = 0; c < width; ++c) peak = fmax(peak, fabs(value_of(dtype, x, row * width + c)));
    greatest[row] = peak == 0 ? 448 : peak;  // a row of zeros has a scale of 1
  }
}

void check_quantize() {
  if (!wanted("quantize rows")) return;
  for (const int64_t width : {1, 3, 4, 128, 1152, 1536, 1540, 4608, 8192, 8196})
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32})
      for (int shifts = 0; shifts < 4; ++shifts) {
        Scope scope;
        const int64_t rows = 37;
        const Buffer x(dtype, rows * width, shifts & 1), out(Dtype::e4m3, rows * width, shifts >> 1);
        const Buffer scale(Dtype::fp32, rows);
        draw(x, 2.0f);
        must(cudaMemsetAsync(x.data() + 5 * width * bytes_of(dtype), 0, width * bytes_of(dtype), nullptr),
             "zeros");
        double* const greatest = static_cast<double*>(arena.take(8 * rows));
        greatest_kernel<<<1, 64>>>(dtype, x.data(), rows, width, greatest);
        check("quantize rows",
              text("%dx%d of %s, shifts %d,", 37, static_cast<int>(width), name_of(dtype), shifts),
              [&] {
                return quantize_rows({rows, width, dtype, x.data(), out.data(), scale.floats()}, nullptr);
              },
              {{"out", out, width, QuantizeWant{dtype, x.data(), scale.floats(), width}},
               {"scale", scale, 1, ScaleWant{greatest, nullptr}}});
      }
}

void check_largest() {
  if (!wanted("largest value")) return;
  for (const int64_t count : {1, 7, 8, 1000, (1 << 18) + 3})
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32})
      for (const int shift : {0, 1}) {
        Scope scope;
        const Buffer x(dtype, count, shift), zero(Dtype::fp32, 1), largest(Dtype::fp32, 1);
        draw(x, 2.0f);
        must(cudaMemsetAsync(zero.data(), 0, 4, nullptr), "zero");
        double* const greatest = static_cast<double*>(arena.take(8));
        greatest_kernel<<<1, 1>>>(dtype, x.data(), 1, count, greatest);
        check("largest value", text("%d of %s, shift %d,", static_cast<int>(count), name_of(dtype), shift),
              [&] {
                return largest_value({count, dtype, x.data(), largest.floats()}, nullptr);
              },
              {{"largest", largest, 1, ScaleWant{greatest, nullptr}, zero}});
      }
}

// ---- all of it ----

constexpr Case kRows[] = {{1, 1, 0, 0},    {1, 128, 0, 0}, {3, 203, 0, 0}, {4, 256, 0, 0},
                          {2, 1000, 0, 0}, {7, 64, 0, 0},  {1, 4097, 0, 0}};

std::vector<int64_t> inputs_of(Dtype dtype) {  // rows of e4m3 are multiples of 16 values
  return dtype == Dtype::e4m3 ? std::vector<int64_t>{16, 64, 80, 208, 384, 1152}
                              : std::vector<int64_t>{16, 64, 72, 200, 384, 1152};
}

// Whether an emulated GPU (tests/emulated) takes seconds for it: then only as many as show every branch.
bool too_large(const Case& s) {
#ifdef POM_EMULATED
  return s.batch * s.tokens * s.inputs * s.outputs > 6'000'000 || s.inputs > 400;
#else
  return false;
#endif
}

void check_gemms(Dtype dtype) {
  const std::string name = name_of(dtype);
  if (!wanted("store " + name) && !wanted("gate " + name) && !wanted("gate of sums " + name) &&
      !wanted("residual " + name))
    return;
  const auto one = [&](Case s, bool bias) {
    Scope scope;
    const Reference r = reference_of(dtype, s, bias);
    expect(gemm_supported(r.gemm), "choices", sizes_of(r, 0) + " not supported");
    check_store(r), check_gate(r), check_residual(r, "residual " + name), check_gate_of_sums(r);
  };
  int n = 0;
  for (Case s : kRows)
    for (const int64_t K : inputs_of(dtype))
      for (const int64_t N : {8, 24, 96, 200, 384, 1152}) {
        if (quick && ++n % 7 != 0) continue;
        s.inputs = K, s.outputs = N;
        if (!too_large(s)) one(s, (K + N) % 3 != 0);
      }
  if (const Case s{2, 1000, 1152, 4608}; !too_large(s)) one(s, true);
}

void check_all_sums(Dtype dtype) {
  int n = 0;
  for (const int order : kSumsOrders)
    for (const int64_t D : {8, 40, 384})
      for (Case s : kRows) {
        ++n;
        if (quick && n % 5 != 0) continue;
        const std::vector<int64_t> inputs = inputs_of(dtype);
        s.inputs = inputs[n % inputs.size()], s.outputs = order * D;
        if (!too_large(s)) check_sums(dtype, s, order, n % 4 != 0);
      }
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i)
    if (std::string(arguments[i]) == "--quick")
      quick = true;
    else
      filter = arguments[i];
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gemm_device()) return std::printf("skipped: needs a GPU of compute capability 9.0\n"), 77;
  check_choices();
  check_refusals();
  check_streams();
  check_quantize();
  check_largest();
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::e4m3}) {
    check_gemms(dtype), check_all_sums(dtype);
    check_gate_runs(dtype), check_splits(dtype);
  }
  finish();
}
