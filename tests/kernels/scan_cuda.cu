// The causal mixer between its products (pom/kernels/sm90/scan/scan.h) against fp64 on the host. A program of
// its own, so that it needs nvcc and a GPU but neither torch nor GoogleTest:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. tests/kernels/scan_cuda.cu
//   pom/kernels/sm90/{gemm,scan}/*.cu -o scan_cuda
//   ./scan_cuda [--quick] [filter]      a part of a group's name: "bf16"
// Rows = batch * tokens, K inputs, N = order * D outputs. Results and inputs stand between guards of
// not-a-number; every case runs twice and must give the same bits.
#include "tests/kernels/host_check.cuh"

#include "pom/kernels/sm90/scan/scan.h"

namespace {

using namespace pom::kernels;

struct Case {
  int64_t batch, tokens, inputs, D;
  int order;
  bool bias;
  int64_t rows() const { return batch * tokens; }
  int64_t outputs() const { return order * D; }
};

// a w^T + bias in fp64, and how far off fp32 may be.
class Linear {
 public:
  Linear(Dtype dtype, const Case& c, const Values& a)
      : w_values(draw(dtype, c.outputs() * c.inputs, 1.5f / std::sqrt(static_cast<float>(c.inputs)))),
        b_values(draw(Dtype::fp32, c.outputs(), 0.5f)) {
    for (int64_t i = 0; i < c.rows() * c.outputs(); ++i) {
      const int64_t row = i / c.outputs(), n = i % c.outputs();
      double sum = 0, size = 0;
      for (int64_t k = 0; k < c.inputs; ++k) {
        const double v = static_cast<double>(a[row * c.inputs + k]) * w_values[n * c.inputs + k];
        sum += v, size += std::abs(v);
      }
      const double bias = c.bias ? b_values[n] : 0;
      values.push_back({sum + bias, 1e-5 * size + 1e-6 * std::abs(bias) + 1e-9});
    }
  }
  Values w_values, b_values;
  std::vector<Expected> values;
};

// As gemm_sums has them.
Values prepared(const Values& rows, const Case& c, int64_t width) {
  Values v(rows.size());
  for (int64_t r = 0; r < c.outputs(); ++r)
    std::copy_n(rows.begin() + sums_row(r, c.order, c.D) * width, width, v.begin() + r * width);
  return v;
}

double gelu_error(Dtype dtype, double x) {  // of the short functions
  return dtype == Dtype::fp16 ? 2e-6 : std::abs(x) * 2.7e-4 + 3e-5;
}

std::vector<Expected> powers(Dtype dtype, const Case& c, const std::vector<Expected>& factors) {
  std::vector<Expected> p(factors.size());
  for (int64_t row = 0; row < c.rows(); ++row)
    for (int64_t j = 0; j < c.D; ++j) {
      Expected now{1, 0};
      for (int i = 0; i < c.order; ++i) {
        const Expected& f = factors[row * c.outputs() + i * c.D + j];
        const double g = gelu_of(f.value), off = 1.13 * f.error + gelu_error(dtype, f.value);
        now = {now.value * g, std::abs(now.value) * off + std::abs(g) * now.error + now.error * off +
                                  1e-6 * std::abs(now.value * g)};
        p[row * c.outputs() + i * c.D + j] = now;
      }
    }
  return p;
}

struct Wanted {
  std::vector<Expected> out, total;
};

// The sums up to each token, where `stored` rounded once to 16 bits within a tile of 128 rows.
Wanted wanted_of(Dtype dtype, const Case& c, const std::vector<Expected>& p, const std::vector<Expected>& se,
                 int64_t block, const Values& before, const std::vector<int64_t>& counts, bool stored) {
  const int64_t N = c.outputs(), n = c.tokens;
  const double u = !stored ? 0 : dtype == Dtype::fp16 ? 0x1p-11 : 0x1p-8;
  const double least = stored && dtype == Dtype::fp16 ? 0x1p-20 : 0;
  Wanted w{std::vector<Expected>(c.rows() * N), std::vector<Expected>(c.batch * N)};
  std::vector<Expected> sums(n);
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t column = 0; column < N; ++column) {
      Expected sum{before.empty() ? 0.0 : before[b * N + column], 0};
      double within = 0;
      for (int64_t t = 0; t < n; ++t) {
        const int64_t row = b * n + t;
        const Expected& e = p[row * N + column];
        within = row % 128 == 0 ? e.value : within + e.value;
        sum = {sum.value + e.value, sum.error + e.error + 1e-7 * (std::abs(sum.value) + std::abs(e.value))};
        sums[t] = {sum.value, sum.error + u * std::abs(within) + least};
      }
      w.total[b * N + column] = sum;
      for (int64_t t = 0; t < n; ++t) {
        const int64_t last = std::min((t / block + 1) * block, n) - 1, at = (b * n + t) * N + column;
        const double number = 1e-7 + static_cast<double>(last + 1 + (before.empty() ? 0 : counts[b]));
        const double h = sums[last].value / number, off = sums[last].error / number + 1e-6 * std::abs(h);
        const double gate = 1 / (1 + std::exp(-se[at].value));
        const double gate_off = 0.25 * se[at].error + (dtype == Dtype::fp16 ? 2e-6 : 2.7e-4);
        w.out[at] = {gate * h, gate * off + gate_off * (std::abs(h) + off) + 1e-12};
      }
    }
  return w;
}

// What all cases of a size share: operands in both orders of weights, a state to go on from, results.
class Operands {
 public:
  Operands(Dtype dtype, const Case& of)
      : c(of),
        a_values(draw(dtype, c.rows() * c.inputs, 1)),
        ho(dtype, c, a_values),
        se(dtype, c, a_values),
        p(powers(dtype, c, ho.values)),
        state(draw(Dtype::fp32, c.batch * c.outputs(), 3)),
        a(dtype, by_32(a_values, c)),
        ho_prepared(dtype, prepared(ho.w_values, c, c.inputs)),
        ho_w(dtype, ho.w_values),
        se_w(dtype, se.w_values),
        ho_prepared_b(Dtype::fp32, prepared(ho.b_values, c, 1)),
        ho_b(Dtype::fp32, ho.b_values),
        se_b(Dtype::fp32, se.b_values),
        se_prepared(dtype, prepared(se.w_values, c, c.inputs)),
        se_prepared_b(Dtype::fp32, prepared(se.b_values, c, 1)),
        sum(Dtype::fp32, state),
        total(Dtype::fp32, c.batch * c.outputs()),
        out(dtype, c.rows() * c.outputs()),
        dtype_(dtype) {
    for (int64_t b = 0; b < c.batch; ++b) counts.push_back(7 * b + 2);
    must(cudaMalloc(&count, 8 * c.batch), "cudaMalloc");
    must(cudaMemcpy(count, counts.data(), 8 * c.batch, cudaMemcpyHostToDevice), "counts");
  }
  ~Operands() { cudaFree(count); }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  Gemm gemm(const Buffer& w, const Buffer& bias) const {
    Gemm q;
    q.sizes = {c.batch, c.tokens, c.inputs, c.outputs()}, q.dtype = dtype_;
    q.a = a.data(), q.w = w.data(), q.bias = c.bias ? bias.floats() : nullptr;
    return q;
  }
  Wanted wanted(int64_t block, bool going_on, bool stored) const {
    return wanted_of(dtype_, c, p, se.values, block, going_on ? state : Values(), counts, stored);
  }
  template <class Run>
  void compare(const char* kind, int64_t block, bool going_on, const Wanted& want, const Run& run) const {
    check(std::string(kind) + " " + name_of(dtype_),
          text("%lldx%lld, K %lld, D %lld, order %d, bias %d, block %lld, going on %d,",
               static_cast<long long>(c.batch), static_cast<long long>(c.tokens),
               static_cast<long long>(c.inputs), static_cast<long long>(c.D), c.order, c.bias,
               static_cast<long long>(block), going_on),
          run, {{"out", out, want.out, {}}, {"total", total, want.total, {}}});
  }

  const Case c;
  const Values a_values;
  const Linear ho, se;
  const std::vector<Expected> p;
  const Values state;
  std::vector<int64_t> counts;
  int64_t* count = nullptr;
  const Buffer a, ho_prepared, ho_w, se_w, ho_prepared_b, ho_b, se_b, se_prepared, se_prepared_b, sum, total,
      out;

 private:
  // Not-a-number in the rows up to a multiple of 32, which the kernel of one piece reads.
  static Values by_32(Values v, const Case& c) {
    v.resize((c.rows() + 31) / 32 * 32 * c.inputs, NAN);
    return v;
  }
  Dtype dtype_;
};

void check_case(Dtype dtype, const Case& c, const std::vector<int64_t>& blocks) {
  const Operands o(dtype, c);
  const Gemm context = o.gemm(o.ho_prepared, o.ho_prepared_b), queries = o.gemm(o.se_w, o.se_b);
  const Buffer prefix(dtype, c.rows() * c.outputs());
  const Buffer totals(Dtype::fp32, scan_slots(context.sizes) * c.outputs());
  for (const int64_t block : blocks)
    for (const bool going_on : {false, true}) {
      const ScanGateEpilogue gate{block, prefix.data(), totals.floats(), going_on ? o.count : nullptr,
                                  o.out.data()};
      const auto run = [&](bool) {
        prefix.clear(), totals.clear();
        const cudaError_t scanned = scan(context, {c.order, prefix.data(), totals.floats()}, nullptr);
        if (scanned != cudaSuccess) return scanned;
        const cudaError_t carried = scan_carry(
            {context.sizes, totals.floats(), going_on ? o.sum.floats() : nullptr, o.total.floats()}, nullptr);
        return carried != cudaSuccess ? carried : scan_gate(queries, gate, nullptr);
      };
      o.compare("scan", block, going_on, o.wanted(block, going_on, true), run);
      expect(prefix.guards_stand(prefix.all()) && totals.guards_stand(totals.all()),
             std::string("scan ") + name_of(dtype), "the sums were written outside");
    }
}

// The kernel of one piece.
ScanMix mix_of(const Operands& o, const Buffer& work, int64_t block, bool going_on) {
  ScanMix mix;
  const bool dealt = o.c.order == 2;
  mix.order = o.c.order, mix.block = block, mix.se = (dealt ? o.se_w : o.se_prepared).data();
  mix.se_bias = o.c.bias ? (dealt ? o.se_b : o.se_prepared_b).floats() : nullptr;
  if (going_on) mix.sum = o.sum.floats(), mix.count = o.count;
  mix.total = o.total.floats(), mix.work = work.data(), mix.out = o.out.data();
  return mix;
}
void check_mix(Dtype dtype, const Case& c, int64_t step = 2) {
  const Operands o(dtype, c);
  const Gemm context = c.order == 2 ? o.gemm(o.ho_w, o.ho_b) : o.gemm(o.ho_prepared, o.ho_prepared_b);
  const Buffer work(Dtype::fp32, scan_mix_work(context.sizes) / 4);
  const std::string group = std::string("mix ") + name_of(dtype);
  for (int64_t block = 1; block <= 128; block *= step) {
    const bool has = scan_mix_supported(context, c.order, block);
    expect(has == (c.order == 2 ? c.tokens % block == 0 : block == 1), group,
           "which blocks there is a kernel for");
    if (!has) continue;
    for (const bool going_on : {false, true}) {
      const auto run = [&](bool) {
        work.clear();
        return scan_mix(context, mix_of(o, work, block, going_on), nullptr);
      };
      o.compare("mix", block, going_on, o.wanted(block, going_on, false), run);
      expect(work.guards_stand(work.all()), group, "the work was written outside");
    }
    ScanMix bare = mix_of(o, work, block, false);
    bare.total = nullptr;
    o.out.clear();
    expect(scan_mix(context, bare, nullptr) == cudaSuccess, group, "without totals");
    finish_within(5, group);
  }
}

// Two at a time, neither of which may keep the other from going on.
void check_together(Dtype dtype) {
  const std::string group = std::string("together ") + name_of(dtype);
  if (group.find(filter) == std::string::npos) return;
  constexpr int kTimes = kEmulated ? 2 : 30;
  const Case c{1, 4096, 64, 960, 2, true};
  const GemmSizes sizes{c.batch, c.tokens, c.inputs, c.outputs()};
  const Values values = draw(dtype, c.rows() * c.inputs, 1),
               weights = draw(dtype, c.outputs() * c.inputs, 0.2f);
  const Buffer a(dtype, values), w(dtype, weights), out(dtype, c.rows() * c.outputs());
  const Buffer other(dtype, c.rows() * c.outputs());
  const Buffer works[2] = {Buffer(Dtype::fp32, scan_mix_work(sizes) / 4),
                           Buffer(Dtype::fp32, scan_mix_work(sizes) / 4)};
  cudaStream_t streams[2];
  for (cudaStream_t& s : streams) must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "a stream");
  Gemm gemm;
  gemm.sizes = sizes, gemm.dtype = dtype, gemm.a = a.data(), gemm.w = w.data();
  for (int i = 0; i < kTimes; ++i)
    for (int s = 0; s < 2; ++s) {
      ScanMix mix;
      mix.se = w.data(), mix.work = works[s].data(), mix.out = (s == 0 ? out : other).data();
      must(scan_mix(gemm, mix, streams[s]), group);
    }
  cudaEvent_t done;
  must(cudaEventCreate(&done), "an event");
  for (cudaStream_t& s : streams) {
    must(cudaEventRecord(done, s), "an event");
    must(cudaStreamWaitEvent(nullptr, done, 0), "an event");
  }
  finish_within(5, group);
  expect(out.all() == other.all(), group, "the two differ");
  must(cudaEventDestroy(done), "an event");
  for (cudaStream_t& s : streams) must(cudaStreamDestroy(s), "a stream");
}

void check_all(Dtype dtype) {
  if (!wanted("scan", dtype)) return;
  struct Size {
    int64_t batch, tokens;
  };
  int n = 0;
  for (const Size size :
       {Size{1, 1}, {1, 128}, {2, 127}, {2, 129}, {3, 100}, {40, 7}, {200, 1}, {1, 700}, {2, 300}})
    for (const int order : kSumsOrders)
      for (const int64_t D : {8, 40, 96}) {
        ++n;
        if (quick && n % (5 * kSpread) != 0) continue;
        const int64_t inputs[] = {16, 64, 72};
        check_case(dtype, {size.batch, size.tokens, inputs[n % 3], D, order, n % 4 != 0},
                   n % 3 == 0 ? std::vector<int64_t>{1, 2, 15} : std::vector<int64_t>{1});
      }
  check_case(dtype, {1, kEmulated ? 2200 : 3000, 64, kEmulated ? 8 : 64, 2, true},
             {1, 15});  // more tiles than groups that carry
}

void check_mixes(Dtype dtype) {
  if (!wanted("mix", dtype)) return;
  struct Size {
    int64_t batch, tokens;
  };
  int n = 0;
  // Sequences that start with a tile of 128 rows, a warp's 32, a thread's 4, and inside; rows that are a
  // multiple of 32 and others.
  for (const Size size : {Size{1, 1},
                          {1, 128},
                          {2, 127},
                          {2, 129},
                          {3, 100},
                          {40, 7},
                          {200, 1},
                          {1, 700},
                          {2, 300},
                          {3, 256},
                          {4, 96},
                          {5, 64},
                          {12, 16},
                          {100, 2},
                          {2, 1000}})
    for (const int64_t D : {16, 48, 80}) {
      ++n;
      if (quick && n % (4 * kSpread) != 0) continue;
      const int64_t inputs[] = {16, 64, 72};
      check_mix(dtype, {size.batch, size.tokens, inputs[n % 3], D, 2, n % 4 != 0});
    }
  for (const Size size : {Size{1, 128}, {3, 100}, {40, 7}, {2, 300}})
    for (const int order : kSumsOrders)
      for (const int64_t D : {8, 40, 96}) {
        ++n;
        if (order == 2 || (quick && n % (4 * kSpread) != 0)) continue;
        check_mix(dtype, {size.batch, size.tokens, 72, D, order, n % 4 != 0});
      }
  check_mix(dtype, {1, kEmulated ? 768 : 2048, 16, kEmulated ? 288 : 960, 2, true},
            kEmulated ? 2 : 8);  // more tiles than clusters
  if (quick) return;
  check_mix(dtype, {1, 6016, 16, 288, 2, true}, 16);  // many that hand on their sums
  check_mix(dtype, {3, 2001, 200, 96, 2, true}, 128);
}

void check_refusals() {
  const std::string group = "refusals";
  if (group.find(filter) == std::string::npos) return;
  const Buffer memory(Dtype::fp32, 4096);
  Gemm good;
  good.sizes = {1, 16, 64, 48}, good.a = memory.data(), good.w = memory.data();
  const auto refused = [&](const char* what, const Gemm& p, const ScanEpilogue& epilogue) {
    expect(scan(p, epilogue, nullptr) != cudaSuccess, group, std::string(what) + " was taken");
    cudaGetLastError();
  };
  refused("order 5", good, {5, memory.data(), memory.floats()});
  refused("48 outputs of order 4", good, {4, memory.data(), memory.floats()});
  refused("no prefix", good, {2, nullptr, memory.floats()});
  Gemm scaled = good;
  scaled.dtype = Dtype::e4m3, scaled.a_scale = scaled.w_scale = memory.floats();
  refused("e4m3", scaled, {2, memory.data(), memory.floats()});
  expect(scan_gate(good, {}, nullptr) != cudaSuccess, group, "a gate without sums was taken");
  expect(scan_mix(good, {}, nullptr) != cudaSuccess, group, "nothing to mix was taken");
  Gemm even = good;
  even.sizes.outputs = 64;
  expect(scan_mix_supported(even, 2, 1) && !scan_mix_supported(good, 2, 1), group, "48 outputs were taken");
  for (const int64_t block : {0, 3, 32, 256})
    expect(!scan_mix_supported(even, 2, block), group, "a block that does not fit was taken");
  expect(!scan_mix_supported(even, 5, 1) && !scan_mix_supported(even, 3, 1), group, "an order was taken");
  expect(!scan_mix_supported(even, 4, 2), group, "a block of order 4 was taken");
  cudaGetLastError();
}

}  // namespace

int main(int count, char** arguments) {
  if (!begin(count, arguments) || !gemm_device())
    return std::printf("skipped: needs a GPU of compute capability 9.0\n"), 77;
  check_refusals();
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16})
    check_all(dtype), check_mixes(dtype), check_together(dtype);
  finish();
}
