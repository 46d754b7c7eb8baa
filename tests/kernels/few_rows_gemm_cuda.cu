// Products of few rows with their epilogues against fp64 on the host. A program of its own, so that it needs
// nvcc and a GPU but neither torch nor GoogleTest:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. tests/kernels/few_rows_gemm_cuda.cu
//   pom/kernels/portable/few_rows_gemm.cu -o few_rows_gemm_cuda
//   ./few_rows_gemm_cuda [--quick] [filter]      a part of a group's name: "sums", "bf16", "gate fp16"
// R rows = batch * tokens, K inputs, N outputs. Results and inputs stand between guards of not-a-number;
// every case runs twice, and again with the weights read ahead, and must give the same bits.
#include "tests/kernels/host_check.cuh"

#include "pom/kernels/portable/few_rows_gemm.h"

namespace {

using namespace pom::kernels;

// ---- the reference ----

struct Case {
  int64_t batch, tokens, inputs, outputs;
  bool norm, bias;
  int a_shift, w_shift;
  int64_t rows() const { return batch * tokens; }
};

// c = a w^T + bias in fp64, and how far off fp32 may be.
class Reference {
 public:
  Reference(Dtype dtype, const Case& c_)
      : c(c_),
        a_values(draw(c.norm ? Dtype::fp32 : dtype, c.rows() * c.inputs, 1.3f, c.norm ? 0.7f : 0)),
        w_values(draw(dtype, c.outputs * c.inputs, 1.5f / std::sqrt(static_cast<float>(c.inputs)))),
        b_values(draw(Dtype::fp32, c.outputs, 0.5f)),
        m_values(draw(Dtype::fp32, c.batch * stride(), 0.5f)),
        a(c.norm ? Dtype::fp32 : dtype, a_values, c.a_shift),
        w(dtype, w_values, c.w_shift),
        bias(Dtype::fp32, b_values),
        modulation(Dtype::fp32, m_values) {
    gemm.sizes = {c.batch, c.tokens, c.inputs, c.outputs}, gemm.dtype = dtype;
    gemm.a = a.data(), gemm.w = w.data(), gemm.bias = c.bias ? bias.floats() : nullptr;
    if (c.norm) gemm.norm = {modulation.floats(), modulation.floats() + c.inputs, stride(), 1e-6f};
    for (int64_t row = 0; row < c.rows(); ++row) {
      const std::vector<double> x = row_of(row);
      for (int64_t n = 0; n < c.outputs; ++n) values.push_back(dot(x, n));
    }
  }
  int64_t stride() const { return 3 * c.inputs; }
  Expected at(int64_t row, int64_t n) const { return values[row * c.outputs + n]; }
  std::string name() const {
    return text("%lldx%lld, K %lld, N %lld, norm %d, bias %d, shifts %d %d,", static_cast<long long>(c.batch),
                static_cast<long long>(c.tokens), static_cast<long long>(c.inputs),
                static_cast<long long>(c.outputs), c.norm, c.bias, c.a_shift, c.w_shift);
  }
  FewRowsGemm with(bool settled) const {
    FewRowsGemm p = gemm;
    p.settled = settled;
    return p;
  }

  const Case c;
  FewRowsGemm gemm;

 private:
  std::vector<double> row_of(int64_t row) const {
    const int64_t K = c.inputs;
    std::vector<double> x(a_values.begin() + row * K, a_values.begin() + (row + 1) * K);
    if (!c.norm) return x;
    double mean = 0, squares = 0;
    for (const double v : x) mean += v / static_cast<double>(K);
    for (const double v : x) squares += (v - mean) * (v - mean) / static_cast<double>(K);
    const float* m = m_values.data() + row / c.tokens * stride();
    for (int64_t k = 0; k < K; ++k)
      x[k] = rounded(gemm.dtype,
                     static_cast<float>((x[k] - mean) / std::sqrt(squares + 1e-6) * (1.0 + m[k]) + m[K + k]));
    return x;
  }
  Expected dot(const std::vector<double>& x, int64_t n) const {
    double sum = 0, size = 0, most = 0;
    for (int64_t k = 0; k < c.inputs; ++k) {
      const double v = x[k] * w_values[n * c.inputs + k];
      sum += v, size += std::abs(v), most = std::max(most, std::abs(v));
    }
    const double b = c.bias ? b_values[n] : 0;
    // Of normalised values a few are rounded the other way than in fp64.
    const double flips = c.norm ? 12 * 2 * step_of(gemm.dtype, 1) * most : 0;
    return {sum + b, 1e-5 * size + flips + 1e-6 * std::abs(b) + 1e-9};
  }
  const Values a_values, w_values, b_values, m_values;
  const Buffer a, w, bias, modulation;
  std::vector<Expected> values;
};

void check_store(const Reference& r) {
  const Dtype in = r.gemm.dtype;
  if (!wanted("store", in)) return;
  for (const bool gelu : {false, true})
    for (const Dtype out_dtype : {in, Dtype::fp32}) {
      const Buffer out(out_dtype, r.c.rows() * r.c.outputs);
      std::vector<Expected> want;
      for (int64_t i = 0; i < out.count(); ++i) {
        const Expected e = r.at(i / r.c.outputs, i % r.c.outputs);
        want.push_back(gelu ? Expected{gelu_of(e.value), 1.13 * e.error + 1e-6} : e);
      }
      const RowsStore epilogue{gelu ? Activation::gelu : Activation::none, out_dtype, out.data()};
      check(std::string("store ") + name_of(in),
            r.name() + (gelu ? " gelu to " : " none to ") + name_of(out_dtype),
            [&](bool settled) { return rows_store(r.with(settled), epilogue, nullptr); },
            {{"out", out, want, {}}});
    }
}

int64_t runs_of(int64_t tokens, int64_t run) {
  return run == 0 ? 1 : (tokens + run - 1) / run;
}
int64_t run_of(const Case& c, int64_t row, int64_t run) {
  return row / c.tokens * runs_of(c.tokens, run) + (run == 0 ? 0 : row % c.tokens / run);
}

void check_gate(const Reference& r) {
  const Dtype in = r.gemm.dtype;
  if (!wanted("gate", in)) return;
  const int64_t N = r.c.outputs;
  for (const int64_t run : {0, 1, 3}) {
    const Values H = draw(Dtype::fp32, r.c.batch * runs_of(r.c.tokens, run) * N, 1.0f);
    const Buffer means(Dtype::fp32, H), out(in, r.c.rows() * N);
    std::vector<Expected> want;
    for (int64_t i = 0; i < out.count(); ++i) {
      const Expected e = r.at(i / N, i % N);
      const double h = H[run_of(r.c, i / N, run) * N + i % N];
      want.push_back({h / (1 + std::exp(-e.value)), std::abs(h) * (0.25 * e.error + 1e-6) + 1e-12});
    }
    const RowsGate epilogue{{run}, means.floats(), out.data()};
    check(std::string("gate ") + name_of(in), r.name() + text(" run %d", static_cast<int>(run)),
          [&](bool settled) { return rows_gate(r.with(settled), epilogue, nullptr); },
          {{"out", out, want, {}}});
  }
}

void check_residual(const Reference& r) {
  const Dtype in = r.gemm.dtype;
  if (!wanted("residual", in)) return;
  const int64_t N = r.c.outputs, stride = 2 * N + 1;
  const Values before = draw(Dtype::fp32, r.c.rows() * N, 2.0f),
               gates = draw(Dtype::fp32, r.c.batch * stride, 1);
  const Buffer x(Dtype::fp32, before), gate(Dtype::fp32, gates);
  std::vector<Expected> want;
  for (int64_t i = 0; i < x.count(); ++i) {
    const Expected e = r.at(i / N, i % N);
    const double g = gates[i / N / r.c.tokens * stride + i % N];
    want.push_back({before[i] + g * e.value, std::abs(g) * e.error + 1e-6});
  }
  const RowsResidual epilogue{x.floats(), gate.floats(), stride};
  check(std::string("residual ") + name_of(in), r.name(),
        [&](bool settled) { return rows_residual(r.with(settled), epilogue, nullptr); },
        {{"x", x, want, before}});
}

// ---- the context ----

struct SumsCase {
  int order;
  int64_t run;
  bool causal, masked, state;
};

// Products of factors with their errors: of each row and column.
std::vector<Expected> powers(const Reference& r, int order) {
  const int64_t N = r.c.outputs, D = N / order;
  std::vector<Expected> p(r.c.rows() * N);
  for (int64_t row = 0; row < r.c.rows(); ++row)
    for (int64_t j = 0; j < D; ++j) {
      Expected now{1, 0};
      for (int i = 0; i < order; ++i) {
        const Expected c = r.at(row, i * D + j);
        const double g = gelu_of(c.value), off = 1.13 * c.error + 1e-6;
        now = {now.value * g, std::abs(now.value) * off + std::abs(g) * now.error + now.error * off +
                                  1e-6 * std::abs(now.value * g)};
        p[row * N + i * D + j] = now;
      }
    }
  return p;
}

void check_sums(const Reference& r, const SumsCase& s) {
  const Case& c = r.c;
  const int64_t N = c.outputs, runs = runs_of(c.tokens, s.run);
  const std::vector<Expected> p = powers(r, s.order);
  const Values before = draw(Dtype::fp32, c.batch * N, 2.0f);
  std::vector<int64_t> counts(c.batch);
  std::vector<uint8_t> seen(c.rows());
  for (int64_t b = 0; b < c.batch; ++b) counts[b] = 3 + 5 * b;
  for (int64_t row = 0; row < c.rows(); ++row) seen[row] = !s.masked || row * 2654435761u % 3 != 0;
  const Buffer sum(Dtype::fp32, before), total(Dtype::fp32, c.batch * N), H(Dtype::fp32, c.batch * runs * N);
  int64_t* count = nullptr;
  uint8_t* visible = nullptr;
  must(cudaMalloc(&count, 8 * c.batch), "cudaMalloc"), must(cudaMalloc(&visible, c.rows()), "cudaMalloc");
  must(cudaMemcpy(count, counts.data(), 8 * c.batch, cudaMemcpyHostToDevice), "counts");
  must(cudaMemcpy(visible, seen.data(), c.rows(), cudaMemcpyHostToDevice), "visible");

  std::vector<Expected> totals(total.count()), means(H.count());
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t n = 0; n < N; ++n) {
      Expected now{s.state ? before[b * N + n] : 0.0, 0}, all = now;
      double number = s.state ? static_cast<double>(counts[b]) : 0;
      for (int64_t t = 0; t < c.tokens; ++t) {
        const int64_t row = b * c.tokens + t;
        if (!s.causal && s.run > 0 && t > 0 && t % s.run == 0) now = {0, 0}, number = 0;
        if (seen[row]) {
          const Expected e = p[row * N + n];
          now = {now.value + e.value, now.error + e.error + 1e-7 * std::abs(now.value + e.value)},
          number += 1;
          all = {all.value + e.value, all.error + e.error + 1e-7 * std::abs(all.value + e.value)};
        }
        const double d = 1e-7 + number;
        means[run_of(c, row, s.run) * N + n] = {now.value / d,
                                                now.error / d + 3e-7 * std::abs(now.value / d)};
      }
      totals[b * N + n] = all;
    }
  RowsSums epilogue;
  epilogue.order = s.order, epilogue.runs = {s.run}, epilogue.causal = s.causal;
  epilogue.visible = s.masked ? visible : nullptr;
  if (s.state) epilogue.sum = sum.floats(), epilogue.count = count;
  epilogue.total = total.floats(), epilogue.H = H.floats();
  check(std::string("sums ") + name_of(r.gemm.dtype),
        r.name() + text(" order %d, run %d, causal %d, masked %d, state %d", s.order, static_cast<int>(s.run),
                        s.causal, s.masked, s.state),
        [&](bool settled) { return rows_sums(r.with(settled), epilogue, nullptr); },
        {{"total", total, totals, {}}, {"H", H, means, {}}});
  if (s.state) {  // in place
    RowsSums same = epilogue;
    same.total = const_cast<float*>(same.sum), same.H = nullptr;
    check(std::string("sums ") + name_of(r.gemm.dtype), r.name() + " in place",
          [&](bool settled) { return rows_sums(r.with(settled), same, nullptr); },
          {{"sum", sum, totals, before}});
  }
  must(cudaFree(count), "cudaFree"), must(cudaFree(visible), "cudaFree");
}

// ---- a block stack of products, each reading its weights ahead ----

void check_block_stack(Dtype dtype) {
  const std::string group = std::string("chain ") + name_of(dtype);
  if (!wanted("chain", dtype)) return;
  const int64_t d = 384, N = 1536, batch = 2, layers = 6;
  const Values x0 = draw(Dtype::fp32, batch * d, 1), gates = draw(Dtype::fp32, batch * d, 0.5f);
  const Values ups = draw(dtype, layers * N * d, 0.05f), downs = draw(dtype, layers * N * d, 0.03f);
  const Buffer x(Dtype::fp32, x0), gate(Dtype::fp32, gates), hidden(dtype, batch * N);
  const Buffer up(dtype, ups), down(dtype, downs);
  std::vector<uint8_t> first;
  for (int turn = 0; turn < 12; ++turn) {
    x.put(x0);
    for (int64_t layer = 0; layer < layers; ++layer) {
      FewRowsGemm p;
      p.sizes = {batch, 1, d, N}, p.dtype = dtype, p.a = x.data();
      p.w = static_cast<const char*>(up.data()) + layer * N * d * 2;
      p.norm = {gate.floats(), gate.floats(), d, 1e-6f}, p.settled = turn > 0 && layer > 0;
      must(rows_store(p, {Activation::gelu, dtype, hidden.data()}, nullptr), group);
      p.sizes = {batch, 1, N, d}, p.a = hidden.data(), p.norm = {}, p.settled = turn > 0;
      p.w = static_cast<const char*>(down.data()) + layer * N * d * 2;
      must(rows_residual(p, {x.floats(), gate.floats(), d}, nullptr), group);
    }
    finish_within(5, group);
    const std::vector<uint8_t> bytes = x.all();
    if (turn == 0) first = bytes;
    for (int64_t i = 0; turn == 0 && i < x.count(); ++i)
      expect(std::isfinite(x.value(bytes, i)) && x.value(bytes, i) != x0[i], group, "x was not written");
    expect(bytes == first, group, text("turn %d differs", turn));
  }
}

void check_refusals() {
  const std::string group = "refusals";
  if (group.find(filter) == std::string::npos) return;
  const Buffer memory(Dtype::fp32, 4096);
  FewRowsGemm good;
  good.sizes = {1, 4, 32, 16}, good.a = memory.data(), good.w = memory.data();
  const RowsStore store{Activation::none, Dtype::bf16, memory.data()};
  const auto refused = [&](const char* what, auto change) {
    FewRowsGemm p = good;
    change(p);
    expect(rows_store(p, store, nullptr) != cudaSuccess, group, std::string(what) + " was taken");
    cudaGetLastError();
  };
  const auto of_order = [](int order) {
    RowsSums sums;
    sums.order = order;
    return sums;
  };
  expect(rows_supported(good), group, "4 rows, K 32, N 16 are not supported");
  refused("17 rows", [](FewRowsGemm& p) { p.sizes.tokens = 17; });
  refused("no rows", [](FewRowsGemm& p) { p.sizes.batch = 0; });
  refused("fp32", [](FewRowsGemm& p) { p.dtype = Dtype::fp32; });
  refused("no weights", [](FewRowsGemm& p) { p.w = nullptr; });
  refused("a norm of rows too long", [&](FewRowsGemm& p) {
    p.sizes.inputs = 1 << 20, p.norm = {memory.floats(), memory.floats(), 0, 0};
  });
  expect(rows_sums(good, of_order(3), nullptr) != cudaSuccess, group, "16 outputs of order 3 were taken");
  expect(rows_sums(good, of_order(0), nullptr) != cudaSuccess, group, "order 0 was taken");
  expect(rows_store(good, {}, nullptr) != cudaSuccess, group, "no out was taken");
  cudaGetLastError();
}

// ---- all of it ----

struct RowsOf {
  int64_t batch, tokens;
};
constexpr RowsOf kRows[] = {{1, 1}, {1, 4}, {4, 1},  {8, 1},  {2, 3},
                            {3, 5}, {1, 9}, {13, 1}, {16, 1}, {1, 16}};

void check_gemms(Dtype dtype) {
  int n = 0;
  for (const RowsOf rows : kRows)
    for (const int64_t K : {1, 7, 8, 33, 64, 200, 384, 1152})
      for (const int64_t N : {1, 5, 33, 384, 1200}) {
        ++n;
        if (quick && n % 7 != 0) continue;
        if (K * N > 100000 && n % 3 != 0) continue;  // the host is slow
        const bool norm = n % 2 == 0;
        const Reference r(dtype, {rows.batch, rows.tokens, K, N, norm, n % 3 != 0, n % 5 == 0, n % 7 == 0});
        check_store(r), check_gate(r), check_residual(r);
      }
  for (const RowsOf rows :
       {RowsOf{1, 1}, RowsOf{2, 4}, RowsOf{16, 1}}) {  // long rows, which stay where they are
    const Reference r(dtype, {rows.batch, rows.tokens, 4608, 300, false, true, 0, 0});
    check_store(r), check_gate(r), check_residual(r);
  }
  const Reference wide(dtype, {1, 1, 72, 20000, true, true, 0, 0});  // more blocks than fit at once
  check_store(wide), check_gate(wide), check_residual(wide);
}

void check_all_sums(Dtype dtype) {
  if (!wanted("sums", dtype)) return;
  int n = 0;
  for (const int order : {1, 2, 3, 4, 5, 8, 16, 36})
    for (const RowsOf rows : kRows)
      for (const int64_t D : {1, 20, 150}) {
        ++n;
        if (quick && n % 5 != 0) continue;
        const int64_t inputs[] = {24, 33, 72, 200};
        const Reference r(dtype, {rows.batch, rows.tokens, inputs[n % 4], order * D, n % 2 == 0, n % 3 != 0,
                                  n % 5 == 0, n % 7 == 0});
        check_sums(r, {order, 0, false, n % 4 == 1, false});
        check_sums(r, {order, 1, true, n % 4 == 2, true});
        check_sums(r, {order, n % 3 + 1, n % 2 == 0, false, n % 4 < 2});
      }
}

}  // namespace

int main(int count, char** arguments) {
  if (!begin(count, arguments)) return std::printf("skipped: needs a GPU\n"), 77;
  check_refusals();
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16})
    check_block_stack(dtype), check_gemms(dtype), check_all_sums(dtype);
  finish();
}
