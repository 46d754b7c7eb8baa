// The causal mixer between its products (pom/kernels/product_scan.h) against fp64 on the host. A program of
// its own, so that it needs nvcc and a GPU but neither torch nor GoogleTest:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. tests/kernels/scan_cuda.cu
//   pom/kernels/product*.cu pom/kernels/fold.cu -o scan_cuda
//   ./scan_cuda [--quick] [filter]      a part of a group's name: "bf16"
// Rows = batch * tokens, K inputs, N = order * D outputs. Results and inputs stand between guards of
// not-a-number; every case runs twice and must give the same bits.
#include "tests/kernels/host_check.cuh"

#include "pom/kernels/product_scan.h"

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

// As product_sums has them.
Values relaid(const Values& rows, const Case& c, int64_t width) {
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

// The sums up to each token, rounded once to 16 bits within a tile of 128 rows.
Wanted wanted_of(Dtype dtype, const Case& c, const std::vector<Expected>& p, const std::vector<Expected>& se,
                 int64_t block, const Values& before, const std::vector<int64_t>& counts) {
  const int64_t N = c.outputs(), n = c.tokens;
  const double u = dtype == Dtype::fp16 ? 0x1p-11 : 0x1p-8, least = dtype == Dtype::fp16 ? 0x1p-20 : 0;
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

void check_case(Dtype dtype, const Case& c, const std::vector<int64_t>& blocks) {
  const int64_t N = c.outputs();
  const Values a_values = draw(dtype, c.rows() * c.inputs, 1);
  const Linear ho(dtype, c, a_values), se(dtype, c, a_values);
  const std::vector<Expected> p = powers(dtype, c, ho.values);
  const Buffer a(dtype, a_values), ho_w(dtype, relaid(ho.w_values, c, c.inputs)), se_w(dtype, se.w_values);
  const Buffer ho_b(Dtype::fp32, relaid(ho.b_values, c, 1)), se_b(Dtype::fp32, se.b_values);
  Product context, queries;
  context.sizes = {c.batch, c.tokens, c.inputs, N}, context.dtype = dtype, context.a = a.data();
  queries = context;
  context.w = ho_w.data(), queries.w = se_w.data();
  if (c.bias) context.bias = ho_b.floats(), queries.bias = se_b.floats();
  const Values state = draw(Dtype::fp32, c.batch * N, 3);
  std::vector<int64_t> counts(c.batch);
  for (int64_t b = 0; b < c.batch; ++b) counts[b] = 7 * b + 2;
  int64_t* count = nullptr;
  must(cudaMalloc(&count, 8 * c.batch), "cudaMalloc");
  must(cudaMemcpy(count, counts.data(), 8 * c.batch, cudaMemcpyHostToDevice), "counts");
  const Buffer sum(Dtype::fp32, state), prefix(dtype, c.rows() * N), total(Dtype::fp32, c.batch * N);
  const Buffer totals(Dtype::fp32, scan_slots(context.sizes) * N), out(dtype, c.rows() * N);
  for (const int64_t block : blocks)
    for (const bool going_on : {false, true}) {
      const Wanted want = wanted_of(dtype, c, p, se.values, block, going_on ? state : Values(), counts);
      const ScanGateTail gate{block, prefix.data(), totals.floats(), going_on ? count : nullptr, out.data()};
      const auto run = [&](bool) {
        prefix.clear(), totals.clear();
        const cudaError_t scanned = product_scan(context, {c.order, prefix.data(), totals.floats()}, nullptr);
        if (scanned != cudaSuccess) return scanned;
        const cudaError_t carried = scan_carry(
            {context.sizes, totals.floats(), going_on ? sum.floats() : nullptr, total.floats()}, nullptr);
        return carried != cudaSuccess ? carried : product_scan_gate(queries, gate, nullptr);
      };
      check(std::string("scan ") + name_of(dtype),
            text("%lldx%lld, K %lld, D %lld, order %d, bias %d, block %lld, going on %d,",
                 static_cast<long long>(c.batch), static_cast<long long>(c.tokens),
                 static_cast<long long>(c.inputs), static_cast<long long>(c.D), c.order, c.bias,
                 static_cast<long long>(block), going_on),
            run, {{"out", out, want.out, {}}, {"total", total, want.total, {}}});
      expect(prefix.guards_stand(prefix.all()) && totals.guards_stand(totals.all()),
             std::string("scan ") + name_of(dtype), "the sums were written outside");
    }
  must(cudaFree(count), "cudaFree");
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
        if (quick && n % 5 != 0) continue;
        const int64_t inputs[] = {16, 64, 72};
        check_case(dtype, {size.batch, size.tokens, inputs[n % 3], D, order, n % 4 != 0},
                   n % 3 == 0 ? std::vector<int64_t>{1, 2, 15} : std::vector<int64_t>{1});
      }
  check_case(dtype, {1, 3000, 64, 64, 2, true}, {1, 15});  // more tiles than groups that carry
}

void check_refusals() {
  const std::string group = "refusals";
  if (group.find(filter) == std::string::npos) return;
  const Buffer memory(Dtype::fp32, 4096);
  Product good;
  good.sizes = {1, 16, 64, 48}, good.a = memory.data(), good.w = memory.data();
  const auto refused = [&](const char* what, const Product& p, const ScanTail& tail) {
    expect(product_scan(p, tail, nullptr) != cudaSuccess, group, std::string(what) + " was taken");
    cudaGetLastError();
  };
  refused("order 5", good, {5, memory.data(), memory.floats()});
  refused("48 outputs of order 4", good, {4, memory.data(), memory.floats()});
  refused("no prefix", good, {2, nullptr, memory.floats()});
  Product scaled = good;
  scaled.dtype = Dtype::e4m3, scaled.a_scale = scaled.w_scale = memory.floats();
  refused("e4m3", scaled, {2, memory.data(), memory.floats()});
  expect(product_scan_gate(good, {}, nullptr) != cudaSuccess, group, "a gate without sums was taken");
  cudaGetLastError();
}

}  // namespace

int main(int count, char** arguments) {
  if (!begin(count, arguments) || !product_device())
    return std::printf("skipped: needs a GPU of compute capability 9.0\n"), 77;
  check_refusals();
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) check_all(dtype);
  finish();
}
