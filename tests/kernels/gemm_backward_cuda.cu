// Training's products with their epilogues, and what stands around them, against plain sums in fp64. A
// program of its own, so that it needs nvcc and a GPU but neither torch nor GoogleTest:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. tests/kernels/gemm_backward_cuda.cu
//   pom/kernels/sm90/{gemm,scan}/*.cu -o gemm_backward_cuda
//   ./gemm_backward_cuda [--quick]
// M rows = batch * tokens, K inputs, N outputs. Results stand between guards; every case runs twice and in
// every tile, and must give the same bits.
#include "tests/kernels/watchdog.cuh"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "pom/kernels/sm90/gemm/gemm_backward.h"

namespace {

using namespace pom::kernels;

// ---- counting ----

int checks = 0, failed = 0;
double worst = 0;  // error over its bound

[[noreturn]] void finish() {
  std::printf("%d checks, %d failed, worst %.3f of the bound\n", checks, failed, worst);
  std::fflush(stdout);
  _exit(failed > 0 || checks == 0 ? 1 : 0);
}
void expect(bool ok, const std::string& what) {
  ++checks;
  if (ok) return;
  std::printf("FAILED: %s\n", what.c_str());
  if (++failed >= 20) finish();
}
// ---- memory: `bytes` between guards, whose every byte is 0xFF as the values are at first ----

constexpr int64_t kGuard = 256;

class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(bytes) {
    must(cudaMalloc(&memory_, bytes + 2 * kGuard), "cudaMalloc");
    clear();
  }
  ~Memory() { cudaFree(memory_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void clear() { must(cudaMemset(memory_, 0xFF, bytes_ + 2 * kGuard), "cudaMemset"); }
  char* data() const { return memory_ + kGuard; }
  float* floats() const { return reinterpret_cast<float*>(data()); }
  std::vector<uint8_t> read() const {
    std::vector<uint8_t> all(bytes_ + 2 * kGuard);
    must(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), "copy to the host");
    const auto untouched = [](uint8_t b) { return b == 0xFF; };
    expect(std::all_of(all.begin(), all.begin() + kGuard, untouched) &&
               std::all_of(all.end() - kGuard, all.end(), untouched),
           "written outside");
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  int64_t bytes_;
  char* memory_ = nullptr;
};

float raised(Dtype dtype, const uint8_t* p, int64_t i) {
  if (dtype == Dtype::fp32) return reinterpret_cast<const float*>(p)[i];
  uint16_t bits;
  std::memcpy(&bits, p + 2 * i, 2);
  if (dtype == Dtype::bf16) return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{bits}));
  return __half2float(__half(__half_raw{bits}));
}
uint16_t lowered(Dtype dtype, float value) {
  if (dtype == Dtype::bf16) return static_cast<__nv_bfloat16_raw>(__float2bfloat16(value)).x;
  return static_cast<__half_raw>(__float2half(value)).x;
}

// Values of about N(0, scale^2), on both sides.
uint64_t seed = 1;
float drawn() {
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    sum += static_cast<float>(seed >> 40) * 0x1p-24f - 0.5f;
  }
  return sum * 1.7320508f;
}
struct Halves {
  Memory memory;
  std::vector<float> values;
  Halves(Dtype dtype, int64_t count, float scale) : memory(2 * count), values(count) {
    std::vector<uint16_t> bits(count);
    for (int64_t i = 0; i < count; ++i) {
      bits[i] = lowered(dtype, scale * drawn());
      values[i] = raised(dtype, reinterpret_cast<const uint8_t*>(bits.data()), i);
    }
    must(cudaMemcpy(memory.data(), bits.data(), 2 * count, cudaMemcpyHostToDevice), "copy to the device");
  }
};
struct Floats {
  Memory memory;
  std::vector<float> values;
  Floats(int64_t count, float scale) : memory(4 * count), values(count) {
    for (float& v : values) v = scale * drawn();
    must(cudaMemcpy(memory.data(), values.data(), 4 * count, cudaMemcpyHostToDevice), "copy to the device");
  }
};

// ---- the product in fp64 ----

struct Case {
  Dtype dtype;
  int64_t batch, tokens, inputs, outputs;
  int64_t rows() const { return batch * tokens; }
  GemmSizes sizes() const { return {batch, tokens, inputs, outputs}; }
  std::string name(const char* what) const {
    return text("%s %s %lldx%lld, K %lld, N %lld", what, dtype == Dtype::bf16 ? "bf16" : "fp16",
                static_cast<long long>(batch), static_cast<long long>(tokens), static_cast<long long>(inputs),
                static_cast<long long>(outputs));
  }
};

__device__ double value_of(Dtype dtype, const void* p, int64_t i) {
  if (dtype == Dtype::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return __half2float(static_cast<const __half*>(p)[i]);
}
__global__ void reference_kernel(Dtype dtype, const void* a, const void* w, int64_t rows, int64_t K,
                                 int64_t N, double* c, double* size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * N) return;
  double sum = 0, total = 0;
  for (int64_t k = 0; k < K; ++k) {
    const double gemm = value_of(dtype, a, i / N * K + k) * value_of(dtype, w, i % N * K + k);
    sum += gemm, total += fabs(gemm);
  }
  c[i] = sum, size[i] = total;
}

struct Reference {
  Case s;
  Halves a, w;                   // w is (N, K)
  std::vector<double> c, error;  // of a w^T, and how far off an fp32 sum may be
  explicit Reference(const Case& s)
      : s(s),
        a(s.dtype, s.rows() * s.inputs, 1),
        w(s.dtype, s.outputs * s.inputs, 1.5f / std::sqrt(static_cast<float>(s.inputs))),
        c(s.rows() * s.outputs),
        error(c.size()) {
    const int64_t count = static_cast<int64_t>(c.size());
    Memory sums(8 * count), sizes(8 * count);
    reference_kernel<<<static_cast<unsigned>((count + 255) / 256), 256>>>(
        s.dtype, a.memory.data(), w.memory.data(), s.rows(), s.inputs, s.outputs,
        reinterpret_cast<double*>(sums.data()), reinterpret_cast<double*>(sizes.data()));
    must(cudaMemcpy(c.data(), sums.data(), 8 * count, cudaMemcpyDeviceToHost), "the reference");
    must(cudaMemcpy(error.data(), sizes.data(), 8 * count, cudaMemcpyDeviceToHost), "the reference");
    for (double& e : error) e = 1e-5 * e + 1e-9;
  }
  Gemm gemm(int tile) const {
    Gemm p;
    p.sizes = s.sizes(), p.dtype = s.dtype, p.a = a.memory.data(), p.w = w.memory.data(), p.tile = tile;
    return p;
  }
};

// ---- judging ----

struct Want {
  std::vector<double> value, error;  // before the last rounding
  explicit Want(int64_t count) : value(count), error(count) {}
};
struct Output {
  const char* name;
  Dtype dtype;
  Memory* memory;
  const Want* want;
};

double rounding_of(Dtype dtype, double magnitude) {  // half a step
  const int e = std::ilogb(magnitude > 0 ? magnitude : 1e-300);
  if (dtype == Dtype::fp32) return std::ldexp(1.0, std::max(e, -126) - 24);
  return dtype == Dtype::bf16 ? std::ldexp(1.0, std::max(e, -126) - 8)
                              : std::ldexp(1.0, std::max(e, -14) - 11);
}
void judge(const std::string& what, const Output& o, const std::vector<uint8_t>& bytes) {
  double most = 0;
  size_t at = 0;
  for (size_t i = 0; i < o.want->value.size(); ++i) {
    const double want = o.want->value[i], got = raised(o.dtype, bytes.data(), static_cast<int64_t>(i));
    const double bound =
        1.001 * (o.want->error[i] + rounding_of(o.dtype, std::fabs(want) + o.want->error[i]));
    const double ratio = std::isfinite(got) ? std::fabs(got - want) / bound : INFINITY;
    if (ratio > most) most = ratio, at = i;
  }
  worst = std::max(worst, most);
  expect(most <= 1, text("%s %s[%zu]: expected %.9g, got %.9g, off by %.3g bounds", what.c_str(), o.name, at,
                         o.want->value[at], raised(o.dtype, bytes.data(), static_cast<int64_t>(at)), most));
}

// run(tile) twice in the chosen tile and in each; a tile that is not offered says so and writes nothing.
template <class Run>
void check(const std::string& what, const std::vector<Output>& outputs, const Run& run) {
  std::vector<std::vector<uint8_t>> first;
  int ran = 0;
  for (int tile = 0; tile <= gemm_tiles(); ++tile)
    for (int turn = 0; turn < 2; ++turn) {
      for (const Output& o : outputs) o.memory->clear();
      const cudaError_t status = run(tile);
      const std::string where = text("%s, tile %d", what.c_str(), tile);
      if (tile > 0 && status == cudaErrorInvalidValue) break;
      expect(status == cudaSuccess, where + ": " + cudaGetErrorString(status));
      if (status != cudaSuccess) return;
      finish_within(60, where);
      ++ran;
      for (size_t i = 0; i < outputs.size(); ++i) {
        const std::vector<uint8_t> bytes = outputs[i].memory->read();
        if (first.size() < outputs.size()) {
          judge(where, outputs[i], bytes);
          first.push_back(bytes);
        } else {
          expect(bytes == first[i], where + " " + outputs[i].name + ": other bits than the first run");
        }
      }
    }
  expect(ran >= 4, what + ": no tile by its number");
}

double gelu_of(double x) {
  return 0.5 * x * std::erfc(-x * 0.70710678118654752);
}
double gelu_slope(double x) {
  return 0.5 * std::erfc(-x * 0.70710678118654752) + x * 0.3989422804014327 * std::exp(-0.5 * x * x);
}
double gelu_error(Dtype dtype, double x) {  // of the forward's epilogues
  return dtype == Dtype::fp16 ? 2e-6 : std::fabs(x) * 2.7e-4 + 3e-5;
}
// Of the backward pass in bf16: the hardware's tanh is off by 2^-11 at most, and so the normal distribution
// by half of that and by what its fit leaves.
double normal_error(Dtype dtype) {
  return dtype == Dtype::fp16 ? 2e-6 : 2.6e-4 + 2.1e-4;
}

// ---- the cases ----

void check_context(const Case& s, int order, bool with_bias) {
  const Reference r(s);
  const int64_t N = s.outputs, D = N / order, rows = s.rows();
  const Floats bias(N, 0.5f);
  Memory w(2 * N * s.inputs), ho(2 * rows * N), H(4 * s.batch * N);
  Memory partial(4 * sums_slots(s.sizes(), {}) * N);
  must(context_rows({N, s.inputs, r.w.memory.data(), w.data()}, order, nullptr), "context_rows");
  Want ho_want(rows * N), H_want(s.batch * N);
  for (int64_t i = 0; i < rows * N; ++i) {
    ho_want.value[i] = r.c[i] + (with_bias ? bias.values[i % N] : 0);
    ho_want.error[i] = r.error[i] + 1e-6 * std::fabs(ho_want.value[i]);
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t j = 0; j < D; ++j) {
      double p = 1, e = 0;
      for (int i = 0; i < order; ++i) {
        const double x = ho_want.value[row * N + i * D + j], g = gelu_of(x);
        const double off = 1.13 * ho_want.error[row * N + i * D + j] + gelu_error(s.dtype, x);
        e = std::fabs(g) * e + (std::fabs(p) + e) * off, p *= g;
        const int64_t at = row / s.tokens * N + i * D + j;
        H_want.value[at] += p / static_cast<double>(s.tokens);
        H_want.error[at] += (e + 1e-6 * std::fabs(p)) / static_cast<double>(s.tokens);
      }
    }
  for (const bool paper : {false, true})  // the layout of w
    check(s.name("context") + text(", order %d, bias %d, paper %d", order, with_bias, paper),
          {{"ho", s.dtype, &ho, &ho_want}, {"H", Dtype::fp32, &H, &H_want}}, [&](int tile) {
            partial.clear();
            Gemm p = r.gemm(tile);
            if (paper)
              p.factors = order;
            else
              p.w = w.data();
            p.bias = with_bias ? bias.memory.floats() : nullptr;
            const cudaError_t e = gemm_context(p, {order, partial.floats(), ho.data()}, nullptr);
            if (e != cudaSuccess) return e;
            FoldParams fold;
            fold.sizes = s.sizes(), fold.partial = partial.floats(), fold.H = H.floats();
            return fold_sums(fold, nullptr);
          });
  partial.read();
}

void check_gate_backward(const Case& s, bool for_weights) {
  const Reference r(s);
  const int64_t N = s.outputs, rows = s.rows(), tiles = gemm_row_tiles(rows);
  const Halves se(s.dtype, rows * N, 2);
  const Floats H(s.batch * N, 1);
  Memory dse(2 * rows * N), gated(2 * rows * N), dH(4 * s.batch * N), sums(4 * tiles * N);
  Memory partial(4 * sums_slots(s.sizes(), {}) * N);
  Want dse_want(rows * N), gated_want(rows * N), dH_want(s.batch * N), sums_want(tiles * N);
  for (int64_t i = 0; i < rows * N; ++i) {
    const int64_t row = i / N, column = i % N, at = row / s.tokens * N + column;
    const double h = H.values[at], sigma = 1 / (1 + std::exp(-static_cast<double>(se.values[i]))), c = r.c[i];
    gated_want.value[i] = sigma * h, gated_want.error[i] = 1e-6 * std::fabs(h);
    dse_want.value[i] = c * h * sigma * (1 - sigma);
    dse_want.error[i] = 0.25 * std::fabs(h) * r.error[i] + 1e-6 * std::fabs(c * h);
    dH_want.value[at] += c * sigma, dH_want.error[at] += r.error[i] + 1e-6 * std::fabs(c);
    const int64_t sum = row / 128 * N + column;
    sums_want.value[sum] += dse_want.value[i];
    sums_want.error[sum] += dse_want.error[i] + 1e-6 * std::fabs(dse_want.value[i]);
  }
  std::vector<Output> outputs{{"dse", s.dtype, &dse, &dse_want}, {"dH", Dtype::fp32, &dH, &dH_want}};
  if (for_weights) {
    outputs.push_back({"gated", s.dtype, &gated, &gated_want});
    outputs.push_back({"dse_sums", Dtype::fp32, &sums, &sums_want});
  }
  check(s.name("gate backward"), outputs, [&](int tile) {
    partial.clear();
    GateBackwardEpilogue t{se.memory.data(), H.memory.floats(), dse.data(),
                           nullptr,          partial.floats(),  nullptr};
    if (for_weights) t.gated = gated.data(), t.dse_sums = sums.floats();
    const cudaError_t e = gemm_gate_backward(r.gemm(tile), t, nullptr);
    return e != cudaSuccess ? e : add_slots({s.sizes(), partial.floats(), dH.floats()}, nullptr);
  });
  partial.read();
}

void check_gelu_backward(const Case& s, bool for_weights) {
  const Reference r(s);
  const int64_t N = s.outputs, rows = s.rows(), tiles = gemm_row_tiles(rows);
  const Halves before(s.dtype, rows * N, 2);
  Memory dbefore(2 * rows * N), after(2 * rows * N), sums(4 * tiles * N);
  Want dbefore_want(rows * N), after_want(rows * N), sums_want(tiles * N);
  for (int64_t i = 0; i < rows * N; ++i) {
    const double x = before.values[i];
    const double off = normal_error(s.dtype);
    after_want.value[i] = gelu_of(x), after_want.error[i] = off * std::fabs(x) + 1e-6;
    dbefore_want.value[i] = r.c[i] * gelu_slope(x);
    dbefore_want.error[i] = 1.13 * r.error[i] + off * std::fabs(r.c[i]);
    const int64_t sum = i / N / 128 * N + i % N;
    sums_want.value[sum] += dbefore_want.value[i];
    sums_want.error[sum] += dbefore_want.error[i] + 1e-6 * std::fabs(dbefore_want.value[i]);
  }
  std::vector<Output> outputs{{"dbefore", s.dtype, &dbefore, &dbefore_want}};
  if (for_weights) {
    outputs.push_back({"after", s.dtype, &after, &after_want});
    outputs.push_back({"sums", Dtype::fp32, &sums, &sums_want});
  }
  check(s.name("gelu backward"), outputs, [&](int tile) {
    GeluBackwardEpilogue t{before.memory.data(), dbefore.data(), nullptr, nullptr};
    if (for_weights) t.after = after.data(), t.dbefore_sums = sums.floats();
    return gemm_gelu_backward(r.gemm(tile), t, nullptr);
  });
}

// ---- weights ----

void check_transpose(int64_t rows, int64_t columns) {
  const Halves from(Dtype::bf16, rows * columns, 1);
  Memory to(2 * rows * columns);
  must(transpose({rows, columns, from.memory.data(), to.data()}, nullptr), "transpose");
  finish_within(60, "transpose");
  const std::vector<uint8_t> bytes = to.read();
  bool same = true;
  for (int64_t i = 0; i < rows * columns; ++i)
    same = same && raised(Dtype::bf16, bytes.data(), i % columns * rows + i / columns) == from.values[i];
  expect(same, text("transpose of %lldx%lld", static_cast<long long>(rows), static_cast<long long>(columns)));
}

void check_rows(int order, int64_t D, int64_t columns) {
  const Halves from(Dtype::bf16, order * D * columns, 1);
  Memory to(2 * order * D * columns);
  must(context_rows({order * D, columns, from.memory.data(), to.data()}, order, nullptr), "context_rows");
  finish_within(60, "context_rows");
  const std::vector<uint8_t> bytes = to.read();
  bool same = true;
  std::vector<int> seen(order * D);
  for (int64_t r = 0; r < order * D; ++r) {
    ++seen[context_row(r, order, D)];
    for (int64_t c = 0; c < columns; ++c)
      same = same && raised(Dtype::bf16, bytes.data(), r * columns + c) ==
                         from.values[context_row(r, order, D) * columns + c];
  }
  expect(same && std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }),
         text("context_rows of order %d, D %lld, K %lld", order, static_cast<long long>(D),
              static_cast<long long>(columns)));
}

// ---- what must be refused ----

void check_refusals() {
  const Memory values(1 << 20), out(1 << 20);
  const auto gemm = [&](int64_t K, int64_t N) {
    Gemm p;
    p.sizes = {1, 16, K, N}, p.a = p.w = values.data();
    return p;
  };
  const auto refused = [&](const char* what, cudaError_t status) {
    cudaGetLastError();
    expect(status != cudaSuccess, std::string(what) + " was taken");
    finish_within(60, what);
  };
  const GateBackwardEpilogue gate{values.data(), values.floats(), out.data(),
                                  out.data(),    out.floats(),    nullptr};
  const GeluBackwardEpilogue gelu{values.data(), out.data(), out.data(), nullptr};
  const ContextEpilogue context{2, out.floats(), out.data()};
  refused("gate backward of N 48", gemm_gate_backward(gemm(64, 48), gate, nullptr));
  refused("gelu backward of K 12", gemm_gelu_backward(gemm(12, 64), gelu, nullptr));
  refused("context of D 40", gemm_context(gemm(64, 80), context, nullptr));
  refused("context of order 5", gemm_context(gemm(64, 160), {5, out.floats(), out.data()}, nullptr));
  Gemm p = gemm(64, 64);
  p.bias = values.floats();
  refused("gate backward with a bias", gemm_gate_backward(p, gate, nullptr));
  refused("gelu backward with a bias", gemm_gelu_backward(p, gelu, nullptr));
  p = gemm(64, 64), p.tile = gemm_tiles() + 1;
  refused("a tile too many", gemm_gelu_backward(p, gelu, nullptr));
  refused("no dH", gemm_gate_backward(gemm(64, 64), {values.data(), values.floats(), out.data()}, nullptr));
  GeluBackwardEpilogue off = gelu;
  off.before = values.data() + 2;
  refused("before off alignment", gemm_gelu_backward(gemm(64, 64), off, nullptr));
  p = gemm(64, 64), p.dtype = Dtype::e4m3, p.a_scale = p.w_scale = values.floats();
  refused("e4m3", gemm_gelu_backward(p, gelu, nullptr));
  refused("transpose of odd sizes", transpose({3, 4, values.data(), out.data()}, nullptr));
  const std::vector<uint8_t> bytes = out.read();
  expect(std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0xFF; }),
         "a refused product wrote");
}

// ---- all of it ----

constexpr int64_t kRows[][2] = {{1, 1}, {1, 128}, {3, 203}, {4, 256}, {2, 500}, {37, 5}, {1, 1300}};

void check_gemms(Dtype dtype, bool quick) {
  int n = 0;
  for (const auto& [batch, tokens] : kRows)
    for (const int64_t K : {16, 72, 384}) {
      for (const int64_t N : {32, 96, 160, 384}) {
        if (quick && ++n % (5 * kSpread) != 0) continue;
        const Case s{dtype, batch, tokens, K, N};
        check_gate_backward(s, (n + N) % 3 != 0);
        check_gelu_backward(s, (n + K) % 3 != 0);
      }
      for (const int order : {1, 2, 3, 4, 6})
        for (const int64_t D : {32, 96}) {
          if (quick && ++n % (7 * kSpread) != 0) continue;
          check_context({dtype, batch, tokens, K, order * D}, order, (order + D + K) % 3 != 0);
        }
    }
  const Case wide{dtype, kEmulated ? 1 : 3, 400, quick ? 64 : 1152,
                  kEmulated ? 1152 : 4608};  // more tiles than processors
  check_gate_backward(wide, true);
  check_gelu_backward(wide, true);
  check_context(wide, 2, true);
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!gemm_device()) return std::printf("skipped: needs a GPU of compute capability 9.0\n"), 77;
  const bool quick = count > 1 && std::string(arguments[1]) == "--quick";
  check_refusals();
  for (const int64_t rows : {2, 64, 66, 384})
    for (const int64_t columns : {2, 62, 64, 1154}) check_transpose(rows, columns);
  for (const int order : {1, 2, 3, 4, 6})
    for (const int64_t columns : {2, 12, 16, 1152}) check_rows(order, 96, columns);
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) check_gemms(dtype, quick);
  finish();
}
