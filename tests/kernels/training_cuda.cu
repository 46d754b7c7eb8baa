// The kernels of training against the same formulas in fp64 on the host. A program of its own, so that it
// needs nvcc and a GPU but neither torch nor GoogleTest:
//   nvcc -std=c++20 -O3 -arch=native -I. tests/kernels/training_cuda.cu pom/kernels/portable/mixer.cu
//   pom/kernels/portable/modulation.cu pom/kernels/portable/adamw.cu pom/kernels/portable/weight_copies.cu
//   -o training_cuda
//   ./training_cuda
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "pom/kernels/portable/adamw.h"
#include "pom/kernels/portable/mixer.h"
#include "pom/kernels/portable/modulation.h"
#include "pom/kernels/portable/weight_copies.h"

namespace {

using namespace pom::kernels;
using Values = std::vector<double>;

int passed = 0, failed = 0;
std::mt19937_64 generator(1);

void expect(bool ok, const std::string& what) {
  ok ? ++passed : ++failed;
  if (!ok) std::printf("FAILED: %s\n", what.c_str());
}

void must(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n%d passed, %d failed\n", what.c_str(), cudaGetErrorString(status), passed,
              failed + 1);
  std::exit(1);
}

const char* name_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? "fp32" : dtype == Dtype::bf16 ? "bf16" : "fp16";
}
size_t bytes_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? 4 : 2;
}
double precision_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? 0x1p-23 : dtype == Dtype::bf16 ? 0x1p-7 : 0x1p-10;
}

void encode(Dtype dtype, double value, void* to) {
  const float f = static_cast<float>(value);
  const __nv_bfloat16 b = __float2bfloat16(f);
  const __half h = __float2half(f);
  std::memcpy(to,
              dtype == Dtype::fp32   ? static_cast<const void*>(&f)
              : dtype == Dtype::bf16 ? static_cast<const void*>(&b)
                                     : &h,
              bytes_of(dtype));
}
double decode(Dtype dtype, const void* from) {
  float f;
  __nv_bfloat16 b;
  __half h;
  if (dtype == Dtype::fp32) return std::memcpy(&f, from, 4), f;
  if (dtype == Dtype::bf16) return std::memcpy(&b, from, 2), __bfloat162float(b);
  return std::memcpy(&h, from, 2), __half2float(h);
}

// A tensor on the device, `shift` elements off alignment, between guards; what is not given is not-a-number.
class Tensor {
 public:
  Tensor(Dtype dtype, size_t size, int shift) : dtype_(dtype), size_(size), first_(kGuard + shift) {
    must(cudaMalloc(&memory_, total()), "cudaMalloc");
    clear();
  }
  ~Tensor() { cudaFree(memory_); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  void clear() { must(cudaMemset(memory_, 0xFF, total()), "cudaMemset"); }
  // Fresh values, as the device sees them.
  Values draw(double scale, double offset = 0) {
    std::normal_distribution<double> normal;
    Values values(size_);
    std::vector<char> raw(size_ * bytes_of(dtype_));
    for (size_t i = 0; i < size_; ++i) {
      encode(dtype_, offset + scale * normal(generator), &raw[i * bytes_of(dtype_)]);
      values[i] = decode(dtype_, &raw[i * bytes_of(dtype_)]);
    }
    must(cudaMemcpy(data(), raw.data(), raw.size(), cudaMemcpyHostToDevice), "copy to the device");
    return values;
  }
  std::vector<char> bytes() const {
    std::vector<char> raw(total());
    must(cudaMemcpy(raw.data(), memory_, raw.size(), cudaMemcpyDeviceToHost), "copy from the device");
    return raw;
  }
  // Between the guards.
  std::vector<char> values() const {
    const std::vector<char> all = bytes();
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first_ * bytes_of(dtype_));
    return {begin, begin + static_cast<std::ptrdiff_t>(size_ * bytes_of(dtype_))};
  }
  bool guarded() const {
    const std::vector<char> raw = bytes();
    const size_t before = first_ * bytes_of(dtype_), after = before + size_ * bytes_of(dtype_);
    for (size_t i = 0; i < raw.size(); ++i)
      if ((i < before || i >= after) && raw[i] != static_cast<char>(0xFF)) return false;
    return true;
  }
  void* data() const { return static_cast<char*>(memory_) + first_ * bytes_of(dtype_); }
  float* floats() const { return static_cast<float*>(data()); }

  // Within the rounding of the dtype, a little of the largest, and what else each value may be off by; guards
  // untouched.
  void compare(const Values& want, const std::string& what, const Values& off = {}) const {
    const std::vector<char> raw = bytes();
    double largest = 0, worst = 0;
    for (double v : want) largest = std::max(largest, std::fabs(v));
    for (size_t i = 0; i < size_; ++i) {
      const double error = std::fabs(decode(dtype_, &raw[(first_ + i) * bytes_of(dtype_)]) - want[i]);
      const double bound = 0.51 * precision_of(dtype_) * std::fabs(want[i]) + 4e-6 * largest +
                           (off.empty() ? 0 : 1.01 * off[i]) + 1e-30;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error / bound);
    }
    const size_t before = first_ * bytes_of(dtype_), after = before + size_ * bytes_of(dtype_);
    bool guarded = true;
    for (size_t i = 0; i < raw.size(); ++i)
      if (i < before || i >= after) guarded = guarded && raw[i] == static_cast<char>(0xFF);
    expect(worst <= 1, what + ": error over its bound: " + std::to_string(worst));
    expect(guarded, what + ": written outside");
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t total() const { return (size_ + 2 * kGuard + 8) * bytes_of(dtype_); }
  Dtype dtype_;
  size_t size_, first_;
  void* memory_ = nullptr;
};

// Runs twice: the results have the same bits.
template <class Run>
void twice(const Run& run, const std::vector<Tensor*>& results, const std::string& what) {
  std::vector<std::vector<char>> first;
  run();
  for (const Tensor* t : results) first.push_back(t->bytes());
  for (Tensor* t : results) t->clear();
  run();
  for (size_t i = 0; i < results.size(); ++i)
    expect(results[i]->bytes() == first[i],
           what + ": result " + std::to_string(i) + " differs from run to run");
}

// ---- the mixer ----

double gelu(double x) {
  return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
}
double gelu_slope(double x) {
  return 0.5 * (1 + std::erf(x * std::sqrt(0.5))) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
}
double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

Values means_of(const MixerSizes& s, const Values& ho) {
  const int64_t kD = s.features();
  Values H(static_cast<size_t>(s.batch * kD));
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t t = 0; t < s.tokens; ++t)
      for (int64_t c = 0; c < s.D; ++c) {
        double p = 1;
        for (int64_t i = 0; i < s.order; ++i) {
          p *= gelu(ho[(b * s.tokens + t) * kD + i * s.D + c]);
          H[b * kD + i * s.D + c] += p / static_cast<double>(s.tokens);
        }
      }
  return H;
}

// In bf16 the normal distribution is half of a tanh that is off by 2^-11, and by 5.2e-5 for its polynomial:
// `off` is what that makes of each gradient.
Values means_gradient(const MixerSizes& s, const Values& ho, const Values& dH, Values* off) {
  const int64_t kD = s.features();
  const double below = s.dtype == Dtype::bf16 ? 0x1p-12 + 5.2e-5 : 0;  // of the distribution
  Values dho(ho.size());
  off->assign(ho.size(), 0);
  for (int64_t row = 0; row < s.batch * s.tokens; ++row)
    for (int64_t c = 0; c < s.D; ++c)
      for (int64_t i = 0; i < s.order; ++i) {  // straight from the definition: every p_j with j >= i
        double sum = 0, error = 0;
        for (int64_t j = i; j < s.order; ++j) {
          double others = dH[row / s.tokens * kD + j * s.D + c] / static_cast<double>(s.tokens), wrong = 0;
          for (int64_t l = 0; l <= j; ++l) {
            if (l == i) continue;
            const double x = ho[row * kD + l * s.D + c], g = gelu(x), of_g = below * std::fabs(x);
            wrong = wrong * (std::fabs(g) + of_g) + std::fabs(others) * of_g;
            others *= g;
          }
          sum += others, error += wrong;
        }
        const int64_t at = row * kD + i * s.D + c;
        const double slope = gelu_slope(ho[at]);
        dho[at] = sum * slope;
        (*off)[at] = error * (std::fabs(slope) + below) + std::fabs(sum) * below;
      }
  return dho;
}

// Sums over the rows of each part, as the kernels cut them.
Values part_sums(const Values& x, int64_t batch, int64_t rows, int64_t columns, int parts) {
  Values sums(static_cast<size_t>(batch * parts * columns));
  const int64_t each = (rows + parts - 1) / parts;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t c = 0; c < columns; ++c)
        sums[(b * parts + t / each) * columns + c] += x[(b * rows + t) * columns + c];
  return sums;
}

void check_context(const MixerSizes& s, int shift, const std::string& what) {
  const size_t count = s.batch * s.tokens * s.features(), row = s.batch * s.features();
  const int parts = context_parts(s);
  Tensor ho(s.dtype, count, shift), H(Dtype::fp32, row, 0), scratch(Dtype::fp32, row * parts, 0);
  const Values x = ho.draw(1.5);
  const MeansParams forward{s, ho.data(), scratch.floats(), H.floats()};
  twice([&] { must(mixer_means(forward, nullptr), what); }, {&H}, what + " means");
  H.compare(means_of(s, x), what + " H");

  Tensor dH(Dtype::fp32, row, 0), dho(s.dtype, count, shift), sums(Dtype::fp32, row * parts, 0);
  const Values d = dH.draw(static_cast<double>(s.tokens));
  const MeansBackwardParams backward{s, ho.data(), dH.floats(), dho.data(), sums.floats()};
  twice([&] { must(mixer_means_backward(backward, nullptr), what); }, {&dho, &sums}, what + " dho");
  Values off;
  const Values want = means_gradient(s, x, d, &off);
  const auto summed = [&](const Values& v) { return part_sums(v, s.batch, s.tokens, s.features(), parts); };
  dho.compare(want, what + " dho", off);
  sums.compare(summed(want), what + " sums of dho", summed(off));
}

void check_gate(const MixerSizes& s, int shift, const std::string& what) {
  const int64_t kD = s.features(), rows = s.batch * s.queries;
  const size_t count = rows * kD;
  const int parts = query_parts(s);
  Tensor se(s.dtype, count, shift), H(Dtype::fp32, s.batch * kD, 0), out(s.dtype, count, shift);
  const Values x = se.draw(2), h = H.draw(1);
  const GateParams forward{s, se.data(), H.floats(), out.data()};
  twice([&] { must(mixer_gate(forward, nullptr), what); }, {&out}, what + " gate");

  Tensor dout(s.dtype, count, shift), dse(s.dtype, count, shift), gated(s.dtype, count, shift);
  Tensor dH(Dtype::fp32, s.batch * kD, 0), scratch(Dtype::fp32, s.batch * kD * parts, 0);
  Tensor sums(Dtype::fp32, s.batch * kD * parts, 0);
  const Values d = dout.draw(1);
  GateBackwardParams backward{s,          dout.data(), se.data(),    H.floats(),   scratch.floats(),
                              dse.data(), dH.floats(), gated.data(), sums.floats()};
  twice([&] { must(mixer_gate_backward(backward, nullptr), what); }, {&dse, &dH, &gated, &sums},
        what + " dse");
  Values want(count), want_dse(count), want_dH(static_cast<size_t>(s.batch * kD));
  for (int64_t i = 0; i < rows * kD; ++i) {
    const int64_t at = i / kD / s.queries * kD + i % kD;
    want[i] = sigmoid(x[i]) * h[at];
    want_dse[i] = d[i] * want[i] * (1 - sigmoid(x[i]));
    want_dH[at] += d[i] * sigmoid(x[i]);
  }
  out.compare(want, what + " out");
  gated.compare(want, what + " gated");
  dse.compare(want_dse, what + " dse");
  dH.compare(want_dH, what + " dH");
  sums.compare(part_sums(want_dse, s.batch, s.queries, kD, parts), what + " sums of dse");
  backward.gated = nullptr, backward.dse_sums = nullptr;  // what nobody asked for is not written
  dse.clear();
  must(mixer_gate_backward(backward, nullptr), what);
  dse.compare(want_dse, what + " dse alone");
}

void check_mixer() {
  struct Case {
    int64_t batch, queries, tokens, D;
  };
  for (const Case& c :
       {Case{2, 1, 1, 4}, {3, 5, 7, 24}, {2, 130, 257, 33}, {1, 257, 500, 8}, {2, 40, 70, 384}})
    for (int order : {1, 2, 3, 4, 5, 6, 7, 16})
      for (Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16})
        for (int shift : {0, 1}) {
          if (c.D == 384 && order != 2) continue;
          const MixerSizes s{dtype, c.batch, c.queries, c.tokens, c.D, order};
          const std::string what = "mixer B=" + std::to_string(c.batch) + " m=" + std::to_string(c.queries) +
                                   " n=" + std::to_string(c.tokens) + " D=" + std::to_string(c.D) +
                                   " k=" + std::to_string(order) + " " + name_of(dtype) +
                                   (shift ? " unaligned" : "");
          check_context(s, shift, what);
          check_gate(s, shift, what);
        }
}

// ---- norm and gated add ----

void check_norm(const RowSizes& s, Dtype x_dtype, Dtype out_dtype, int shift, const std::string& what) {
  const int64_t rows = s.batch * s.tokens, d = s.width;
  const double eps = 1e-6;
  Tensor x(x_dtype, rows * d, shift), out(out_dtype, rows * d, shift), dout(out_dtype, rows * d, shift);
  Tensor dx(x_dtype, rows * d, shift), mean(Dtype::fp32, rows, 0), rstd(Dtype::fp32, rows, 0);
  Tensor scale(Dtype::fp32, s.batch * d, 0), bias(Dtype::fp32, s.batch * d, 0);
  Tensor dscale(Dtype::fp32, s.batch * d, 0), dshift(Dtype::fp32, s.batch * d, 0);
  Tensor scratch(Dtype::fp32, 2 * s.batch * d * norm_parts(s), 0);
  const Values xs = x.draw(2, 0.5), gains = scale.draw(0.5), biases = bias.draw(1), ds = dout.draw(1);
  const NormParams forward{s,   x_dtype,    out_dtype,     x.data(),     scale.floats(), bias.floats(),
                           eps, out.data(), mean.floats(), rstd.floats()};
  twice([&] { must(modulated_norm(forward, nullptr), what); }, {&out, &mean, &rstd}, what + " norm");
  const NormBackwardParams backward{s,
                                    x_dtype,
                                    out_dtype,
                                    dout.data(),
                                    x.data(),
                                    scale.floats(),
                                    mean.floats(),
                                    rstd.floats(),
                                    scratch.floats(),
                                    dx.data(),
                                    dscale.floats(),
                                    dshift.floats()};
  twice([&] { must(modulated_norm_backward(backward, nullptr), what); }, {&dx, &dscale, &dshift},
        what + " dx");

  Values want(rows * d), want_dx(rows * d), want_dscale(s.batch * d), want_dshift(s.batch * d), means, rstds;
  for (int64_t r = 0; r < rows; ++r) {
    const double *row = &xs[r * d], *gain = &gains[r / s.tokens * d], *bias_row = &biases[r / s.tokens * d];
    double m = 0, v = 0, sum = 0, gemm = 0;
    for (int64_t c = 0; c < d; ++c) m += row[c] / static_cast<double>(d);
    for (int64_t c = 0; c < d; ++c) v += (row[c] - m) * (row[c] - m) / static_cast<double>(d);
    const double inverse = 1 / std::sqrt(v + eps);
    means.push_back(m), rstds.push_back(inverse);
    for (int64_t c = 0; c < d; ++c) {
      const double n = (row[c] - m) * inverse, dn = ds[r * d + c] * (1 + gain[c]);
      want[r * d + c] = n * (1 + gain[c]) + bias_row[c];
      want_dshift[r / s.tokens * d + c] += ds[r * d + c];
      want_dscale[r / s.tokens * d + c] += ds[r * d + c] * n;
      sum += dn / static_cast<double>(d), gemm += dn * n / static_cast<double>(d);
    }
    for (int64_t c = 0; c < d; ++c)
      want_dx[r * d + c] = inverse * (ds[r * d + c] * (1 + gain[c]) - sum - (row[c] - m) * inverse * gemm);
  }
  out.compare(want, what + " out");
  mean.compare(means, what + " mean");
  rstd.compare(rstds, what + " rstd");
  if (d > 2) dx.compare(want_dx, what + " dx");  // of one or two channels it is a difference of equals
  dscale.compare(want_dscale, what + " dscale");
  dshift.compare(want_dshift, what + " dshift");
}

void check_add(const RowSizes& s, Dtype x_dtype, Dtype y_dtype, int shift, const std::string& what) {
  const int64_t rows = s.batch * s.tokens, d = s.width;
  Tensor x(x_dtype, rows * d, shift), y(y_dtype, rows * d, shift), out(x_dtype, rows * d, shift);
  Tensor gate(Dtype::fp32, s.batch * d, 0), dgate(Dtype::fp32, s.batch * d, 0), dy(y_dtype, rows * d, shift);
  Tensor scratch(Dtype::fp32, s.batch * d * gate_parts(s), 0);
  const Values xs = x.draw(1), ys = y.draw(1), gates = gate.draw(1);
  const GatedAddParams forward{s, x_dtype, y_dtype, x.data(), y.data(), gate.floats(), 1, out.data()};
  twice([&] { must(gated_add(forward, nullptr), what); }, {&out}, what + " add");
  const GatedAddBackwardParams backward{
      s, x_dtype, y_dtype, x.data(), y.data(), gate.floats(), 1, scratch.floats(), dy.data(), dgate.floats()};
  twice([&] { must(gated_add_backward(backward, nullptr), what); }, {&dy, &dgate}, what + " dy");
  Values want(rows * d), want_dy(rows * d), want_dgate(s.batch * d);
  for (int64_t i = 0; i < rows * d; ++i) {
    const int64_t at = i / d / s.tokens * d + i % d;
    want[i] = xs[i] + ys[i] * (1 + gates[at]);
    want_dy[i] = xs[i] * (1 + gates[at]);
    want_dgate[at] += xs[i] * ys[i];
  }
  out.compare(want, what + " out");
  dy.compare(want_dy, what + " dy");
  dgate.compare(want_dgate, what + " dgate");
}

void check_rows() {
  for (const RowSizes& s : {RowSizes{3, 1, 1},
                            {2, 7, 5},
                            {3, 70, 192},
                            {1, 257, 24},
                            {2, 5, 260},
                            {2, 9, 1152},
                            {1, 3, 4096},
                            {1, 3, 4095}})
    for (Dtype first : {Dtype::fp32, Dtype::bf16})
      for (Dtype second : {Dtype::fp32, Dtype::bf16})
        for (int shift : {0, 1}) {
          const std::string what = "rows B=" + std::to_string(s.batch) + " N=" + std::to_string(s.tokens) +
                                   " d=" + std::to_string(s.width) + " " + name_of(first) + "/" +
                                   name_of(second) + (shift ? " unaligned" : "");
          check_norm(s, first, second, shift, what);
          check_add(s, first, second, shift, what);
        }
}

// ---- AdamW ----

void check_adamw() {
  for (int64_t n : {1, 3, 4, 1023, 100'001})
    for (int shift : {0, 1})
      for (bool average : {true, false}) {
        Tensor p(Dtype::fp32, n, shift), g(Dtype::fp32, n, shift), m(Dtype::fp32, n, shift);
        Tensor v(Dtype::fp32, n, shift), ema(Dtype::fp32, n, shift), clip(Dtype::fp32, 1, 0);
        Values ps = p.draw(1), gs = g.draw(1), ms = m.draw(0.1), vs(n), es = ema.draw(1);
        const double scale = clip.draw(0.1, 0.5)[0];
        must(cudaMemset(v.data(), 0, n * sizeof(float)), "cudaMemset");
        AdamWParams a{p.floats(), g.floats(), m.floats(), v.floats(), average ? ema.floats() : nullptr,
                      n,          n / 3};
        a.lr = 1e-2, a.beta2 = 0.95, a.weight_decay = 0.1, a.ema_decay = 0.9, a.clip_scale = clip.floats();
        for (int step = 1; step <= 3; ++step) {
          a.bias_correction1 = 1 - std::pow(a.beta1, step), a.bias_correction2 = 1 - std::pow(a.beta2, step);
          must(adamw(a, nullptr), "adamw");
          for (int64_t i = 0; i < n; ++i) {
            const double grad = gs[i] * scale;
            if (i < a.decayed) ps[i] -= a.lr * a.weight_decay * ps[i];
            ms[i] = a.beta1 * ms[i] + (1 - a.beta1) * grad;
            vs[i] = a.beta2 * vs[i] + (1 - a.beta2) * grad * grad;
            ps[i] -= a.lr / a.bias_correction1 * ms[i] /
                     (std::sqrt(vs[i]) / std::sqrt(a.bias_correction2) + a.eps);
            if (average) es[i] += (1 - a.ema_decay) * (ps[i] - es[i]);
          }
        }
        const std::string what = "adamw n=" + std::to_string(n) + (shift ? " unaligned" : "");
        p.compare(ps, what + " p");
        m.compare(ms, what + " m");
        v.compare(vs, what + " v");
        ema.compare(es, what + " ema");
        g.compare(gs, what + " g");
      }
}

// ---- copies of weights ----

// A matrix in the flat buffer with some of its copies.
struct Copied {
  Copied(int64_t begin, int64_t rows, int64_t columns, bool plain, bool transposed, int order)
      : begin(begin), rows(rows), columns(columns), order(order) {
    const auto made = [&] { return std::make_unique<Tensor>(Dtype::bf16, rows * columns, 0); };
    if (plain) this->plain = made();
    if (transposed) this->transposed = made();
    if (order > 0) context = made();
  }
  WeightPart part() const {
    const auto data = [](const std::unique_ptr<Tensor>& t) { return t ? t->data() : nullptr; };
    return {begin, rows, columns, data(plain), data(transposed), data(context), order, 0};
  }
  void clear() const {
    for (const auto* t : {&plain, &transposed, &context})
      if (*t) (*t)->clear();
  }
  // Of the values that `p` has now, rounded on the host.
  void check(const std::vector<char>& p, const std::string& what) const {
    const auto bits = [&](int64_t row, int64_t column) {
      float value;
      std::memcpy(&value, &p[(begin + row * columns + column) * sizeof value], sizeof value);
      uint16_t word;
      encode(Dtype::bf16, value, &word);
      return word;
    };
    const auto compare = [&](const std::unique_ptr<Tensor>& t, const char* form, const auto& want) {
      if (!t) return;
      const std::vector<char> got = t->values();
      int64_t wrong = 0;
      for (int64_t i = 0; i < rows * columns; ++i) {
        uint16_t word;
        std::memcpy(&word, &got[i * sizeof word], sizeof word);
        wrong += word != want(i);
      }
      expect(wrong == 0, what + " " + form + ": " + std::to_string(wrong) + " values are wrong");
      expect(t->guarded(), what + " " + form + ": written outside");
    };
    compare(plain, "plain", [&](int64_t i) { return bits(i / columns, i % columns); });
    compare(transposed, "transposed", [&](int64_t i) { return bits(i % rows, i / rows); });
    compare(context, "context", [&](int64_t i) {  // of 32 features the first factors, the second ones, …
      const int64_t r = i / columns, unit = r / (32 * order), factor = r / 32 % order;
      return bits(factor * (rows / order) + unit * 32 + r % 32, i % columns);
    });
  }

  int64_t begin, rows, columns;
  int order;
  std::unique_ptr<Tensor> plain, transposed, context;
};

// The table on the device.
class Table {
 public:
  explicit Table(std::vector<WeightPart> parts) : count_(static_cast<int>(parts.size())) {
    tiles_ = number_tiles(parts);
    must(cudaMalloc(&memory_, parts.size() * sizeof(WeightPart)), "cudaMalloc");
    must(cudaMemcpy(memory_, parts.data(), parts.size() * sizeof(WeightPart), cudaMemcpyHostToDevice),
         "table");
  }
  ~Table() { cudaFree(memory_); }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  WeightParts parts() const { return {static_cast<const WeightPart*>(memory_), count_, tiles_}; }

 private:
  void* memory_ = nullptr;
  int count_;
  int64_t tiles_;
};

// The same bits as without copies, whose values are those of the weights.
void check_copies() {
  for (int shift : {0, 1}) {
    std::vector<Copied> matrices;
    matrices.emplace_back(0, 192, 72, true, true, 2);      // tiles that end within
    matrices.emplace_back(14336, 64, 64, false, true, 0);  // one tile
    matrices.emplace_back(18432, 96, 40, true, false, 3);
    matrices.emplace_back(22529, 35, 10, true, true, 0);  // not aligned, odd
    matrices.emplace_back(22879, 33, 130, true, false, 0);
    constexpr int64_t n = 40'003;
    std::vector<WeightPart> parts, alone;
    int64_t at = 0;
    const auto until = [&](int64_t end) {
      if (end > at) parts.push_back({at, end - at});
    };
    for (const Copied& m : matrices) {
      until(m.begin);
      parts.push_back(m.part()), alone.push_back(m.part());
      at = m.begin + m.rows * m.columns;
    }
    until(n);
    const Table table(parts), table_alone(alone);
    Tensor g(Dtype::fp32, n, shift), clip(Dtype::fp32, 1, 0);
    g.draw(1), clip.draw(0.1, 0.5);
    std::vector<std::vector<char>> results[2];
    const std::mt19937_64 seed = generator;
    for (bool copies : {false, true}) {
      generator = seed;
      Tensor p(Dtype::fp32, n, shift), m(Dtype::fp32, n, shift), v(Dtype::fp32, n, shift);
      Tensor ema(Dtype::fp32, n, shift);
      p.draw(1), m.draw(0.1), v.draw(0.01, 0.1), ema.draw(1);
      AdamWParams a{p.floats(), g.floats(), m.floats(), v.floats(), ema.floats(), n, n / 3};
      a.lr = 1e-2, a.weight_decay = 0.1, a.ema_decay = 0.9, a.clip_scale = clip.floats();
      a.bias_correction1 = 0.1, a.bias_correction2 = 1e-3;
      if (copies) a.weights = table.parts();
      must(adamw(a, nullptr), "adamw");
      for (const Tensor* t : {&p, &m, &v, &ema}) results[copies].push_back(t->bytes());
      if (!copies) continue;
      const std::string what = std::string("copies") + (shift ? " unaligned" : "");
      const std::vector<char> values = p.values();
      for (size_t i = 0; i < matrices.size(); ++i)
        matrices[i].check(values, what + " of adamw, matrix " + std::to_string(i));
      for (const Copied& each : matrices) each.clear();
      must(lower_weights({p.floats(), table_alone.parts()}, nullptr), "lower_weights");
      for (size_t i = 0; i < matrices.size(); ++i)
        matrices[i].check(values, what + " alone, matrix " + std::to_string(i));
    }
    expect(results[0] == results[1], "adamw: other bits with copies");
  }
}

void refuse() {
  MixerSizes s{Dtype::bf16, 1, 1, 1, 4, kMaxMixerOrder + 1};
  expect(mixer_gate({s, nullptr, nullptr, nullptr}, nullptr) == cudaErrorInvalidValue, "order 17 is refused");
  s.order = 1, s.tokens = 0;
  expect(mixer_means({s, nullptr, nullptr, nullptr}, nullptr) == cudaErrorInvalidValue,
         "no context is refused");
  s.batch = 0, s.tokens = 1;
  expect(mixer_means({s, nullptr, nullptr, nullptr}, nullptr) == cudaSuccess,
         "an empty batch is nothing to do");
  NormParams norm;
  norm.sizes = {1, 1, kMaxNormWidth + 1};
  expect(modulated_norm(norm, nullptr) == cudaErrorInvalidValue, "a row too wide is refused");
}

// ---- time, beside the bytes that must move ----

template <class Run>
void measure(const char* what, double bytes, const Run& run) {
  cudaEvent_t start, stop;
  must(cudaEventCreate(&start), "event");
  must(cudaEventCreate(&stop), "event");
  std::vector<float> times;
  for (int i = 0; i < 25; ++i) {
    float ms = 0;
    must(cudaEventRecord(start), "event");
    must(run(), what);
    must(cudaEventRecord(stop), "event");
    must(cudaEventSynchronize(stop), "event");
    must(cudaEventElapsedTime(&ms, start, stop), "event");
    if (i >= 5) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  std::printf("%-28s %8.1f us  %6.2f TB/s of %.0f MB\n", what, times[10] * 1e3, bytes / times[10] * 1e-9,
              bytes * 1e-6);
}

void* filled(Dtype dtype, size_t size) {  // values repeat, memory does not
  std::vector<char> raw(size * bytes_of(dtype));
  std::normal_distribution<double> normal;
  constexpr size_t kPeriod = 65'537;
  for (size_t i = 0; i < std::min(size, kPeriod); ++i)
    encode(dtype, normal(generator), &raw[i * bytes_of(dtype)]);
  for (size_t i = kPeriod * bytes_of(dtype); i < raw.size(); ++i) raw[i] = raw[i - kPeriod * bytes_of(dtype)];
  void* memory = nullptr;
  must(cudaMalloc(&memory, raw.size()), "cudaMalloc");
  must(cudaMemcpy(memory, raw.data(), raw.size(), cudaMemcpyHostToDevice), "copy to the device");
  return memory;
}
float* floats(size_t size) {
  return static_cast<float*>(filled(Dtype::fp32, size));
}

void measure_all() {
  const MixerSizes s{Dtype::bf16, 512, 256, 256, 384, 2};
  const size_t count = s.batch * s.tokens * s.features(), row = s.batch * s.features();
  const double pass = 2.0 * count;
  void *a = filled(s.dtype, count), *b = filled(s.dtype, count), *c = filled(s.dtype, count),
       *d = filled(s.dtype, count);
  float *H = floats(row), *dH = floats(row), *sums = floats(row * 8), *scratch = floats(row * 8);
  std::printf("mixer: B=512 n=256 kD=768 k=2 bf16\n");
  measure("means", pass, [&] { return mixer_means({s, a, scratch, H}, nullptr); });
  measure("gate", 2 * pass, [&] { return mixer_gate({s, a, H, b}, nullptr); });
  measure("gate backward", 4 * pass, [&] {
    return mixer_gate_backward({s, a, b, H, scratch, c, dH, d, sums}, nullptr);
  });
  measure("means backward", 2 * pass, [&] { return mixer_means_backward({s, a, dH, b, sums}, nullptr); });
  const RowSizes rows{512, 256, 192};
  const size_t values = rows.batch * rows.tokens * rows.width, each = rows.batch * rows.width;
  float *x = floats(values), *out = floats(values), *mean = floats(rows.batch * rows.tokens),
        *rstd = floats(rows.batch * rows.tokens);
  float *scale = floats(each), *shift = floats(each), *rest = floats(16 * each), *dscale = floats(each),
        *dshift = floats(each);
  std::printf("rows: B=512 N=256 d=192, stream fp32, values bf16\n");
  measure("norm", 6.0 * values, [&] {
    return modulated_norm({rows, Dtype::fp32, Dtype::bf16, x, scale, shift, 1e-6f, a, mean, rstd}, nullptr);
  });
  measure("norm backward", 10.0 * values, [&] {
    return modulated_norm_backward(
        {rows, Dtype::fp32, Dtype::bf16, a, x, scale, mean, rstd, rest, out, dscale, dshift}, nullptr);
  });
  measure("gated add", 10.0 * values, [&] {
    return gated_add({rows, Dtype::fp32, Dtype::bf16, x, a, scale, 1, out}, nullptr);
  });
  measure("gated add backward", 8.0 * values, [&] {
    return gated_add_backward({rows, Dtype::fp32, Dtype::bf16, x, a, scale, 1, rest, b, dshift}, nullptr);
  });
  AdamWParams step{x, out, floats(values), floats(values), floats(values), static_cast<int64_t>(values), 0};
  must(cudaMemset(step.v, 0, values * sizeof(float)), "cudaMemset");
  step.lr = 1e-4, step.ema_decay = 0.999;
  measure("adamw, 25 million", 36.0 * values, [&] { return adamw(step, nullptr); });
}

}  // namespace

int main(int count, char**) {
  check_mixer();
  check_rows();
  check_adamw();
  check_copies();
  refuse();
  must(cudaDeviceSynchronize(), "the end");
  std::printf("%d passed, %d failed\n", passed, failed);
  if (failed == 0 && count == 1) measure_all();  // any argument: no figures
  return failed != 0;
}
