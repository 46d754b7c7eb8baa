// The masked mixer against the same formulas in fp64 on the host: every kind of mask, batches and packed
// sequences, forward and gradients, equal bits from run to run, and nothing of what is not seen. A program of
// its own:
//   nvcc -std=c++20 -O3 -arch=native -I. tests/kernels/masks_cuda.cu pom/kernels/portable/masked_*.cu -o
//   masks_cuda
//   ./masks_cuda [--quick] [filter]
#include "tests/kernels/host_check.cuh"
#include <limits>

#include "pom/kernels/portable/masked_mixer.h"

namespace {

using Lengths = std::vector<int64_t>;
using Exact = std::vector<double>;

struct Case {
  int64_t block, window;  // 0, 0: no mask
  Lengths queries, keys;
  bool packed;
  int64_t D;
  int order;
  Dtype dtype;
  int shift;  // elements off alignment

  int64_t kD() const { return order * D; }
  MaskedPlan plan() const {
    const MaskedSizes sizes{dtype, D, order, block, window};
    if (packed) return masked_plan(sizes, queries, keys);
    return masked_plan(sizes, static_cast<int64_t>(keys.size()), queries[0], keys[0]);
  }
  std::string name() const {
    std::string lengths;
    for (size_t s = 0; s < keys.size() && s < 9; ++s) {
      if (s > 0) lengths.append(",");
      lengths.append(std::to_string(keys[s]));
    }
    return text("block=%lld window=%lld n=%s D=%lld k=%d %s%s%s", static_cast<long long>(block),
                static_cast<long long>(window), lengths.c_str(), static_cast<long long>(D), order,
                name_of(dtype), packed ? " packed" : "", shift ? " unaligned" : "");
  }
  std::string group() const {
    const std::string kind = block == 0   ? "whole"
                             : block == 1 ? (window ? "causal window" : "causal")
                                          : (window ? "blocks window" : "blocks");
    return kind + " " + name_of(dtype);
  }

  // Context tokens [first, end) that query t of sequence s sees, and queries that see token t.
  std::pair<int64_t, int64_t> sees(size_t s, int64_t t) const {
    if (block == 0) return {0, keys[s]};
    const int64_t b = t / block;
    return {window ? std::max<int64_t>(0, b + 1 - window) * block : 0, std::min((b + 1) * block, keys[s])};
  }
  std::pair<int64_t, int64_t> seen_by(size_t s, int64_t t) const {
    if (block == 0) return {0, queries[s]};
    const int64_t b = t / block;
    return {b * block, window ? std::min((b + window) * block, queries[s]) : queries[s]};
  }
};

int64_t sum_of(const Lengths& lengths) {
  int64_t sum = 0;
  for (const int64_t n : lengths) sum += n;
  return sum;
}

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}
double slope_of(double x) {
  return 0.5 * std::erfc(-x * 0.70710678118654752) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
}

// What the kernels are to find.
struct Truth {
  Exact out, dse, dho, off;  // off: what the approximate GELU of bf16's gradients makes of dho
};

// One column of one sequence: `step` from one row to the next, D from one degree to the next.
void solve_column(const Case& c, size_t s, const float* ho, const float* se, const float* dout, Truth& r,
                  int64_t key_at, int64_t query_at) {
  const int64_t kD = c.kD(), n = c.keys[s], m = c.queries[s];
  const double below = c.dtype == Dtype::bf16 ? 0x1p-12 + 5.2e-5 : 0;  // of the normal distribution
  std::vector<Exact> dp(c.order, Exact(n));
  Exact p(n, 1.0);
  for (int i = 0; i < c.order; ++i) {
    Exact sums(n + 1), g(m + 1);
    for (int64_t t = 0; t < n; ++t) {
      p[t] *= gelu_of(ho[key_at + t * kD + i * c.D]);
      sums[t + 1] = sums[t] + p[t];
    }
    for (int64_t t = 0; t < m; ++t) {
      const int64_t at = query_at + t * kD + i * c.D;
      const auto [first, end] = c.sees(s, t);
      const double gate = sigmoid_of(se[at]), seen = static_cast<double>(end - first);
      r.out[at] = gate * (sums[end] - sums[first]) / seen;
      r.dse[at] = dout[at] * r.out[at] * (1 - gate);
      g[t + 1] = g[t] + dout[at] * gate / seen;
    }
    for (int64_t t = 0; t < n; ++t) {
      const auto [first, end] = c.seen_by(s, t);
      dp[i][t] = g[end] - g[first];
    }
  }
  for (int64_t t = 0; t < n; ++t)
    for (int i = 0; i < c.order; ++i) {  // straight from the definition: every p_j with j >= i
      double sum = 0, error = 0;
      for (int j = i; j < c.order; ++j) {
        double others = dp[j][t], wrong = 0;
        for (int l = 0; l <= j; ++l) {
          if (l == i) continue;
          const double x = ho[key_at + t * kD + l * c.D], one = gelu_of(x), of_one = below * std::fabs(x);
          wrong = wrong * (std::fabs(one) + of_one) + std::fabs(others) * of_one;
          others *= one;
        }
        sum += others, error += wrong;
      }
      const int64_t at = key_at + t * kD + i * c.D;
      const double slope = slope_of(ho[at]);
      r.dho[at] = sum * slope;
      r.off[at] = error * (std::fabs(slope) + below) + std::fabs(sum) * below;
    }
}

Truth solve(const Case& c, const Values& ho, const Values& se, const Values& dout) {
  Truth r{Exact(se.size()), Exact(se.size()), Exact(ho.size()), Exact(ho.size())};
  int64_t key = 0, query = 0;
  for (size_t s = 0; s < c.keys.size(); ++s) {
    for (int64_t column = 0; column < c.D; ++column)
      solve_column(c, s, ho.data(), se.data(), dout.data(), r, key * c.kD() + column,
                   query * c.kD() + column);
    key += c.keys[s], query += c.queries[s];
  }
  return r;
}

// Within a little of the largest, and what else each may be off by.
std::vector<Expected> expected(const Exact& values, const Exact& off = {}) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::fabs(v));
  std::vector<Expected> result;
  for (size_t i = 0; i < values.size(); ++i)
    result.push_back({values[i], 5e-6 * largest + 1e-30 + (off.empty() ? 0 : off[i])});
  return result;
}

// Sums over each piece, as the plan cuts rows.
Exact piece_sums(const Cut& cut, const Lengths& lengths, int64_t columns, const Exact& x) {
  Exact sums;
  int64_t start = 0;  // row of the sequence
  for (const int64_t length : lengths) {
    for (int64_t run = 0; run < length; run += cut.run)
      for (int64_t t = run; t < std::min(run + cut.run, length); t += cut.piece) {
        const int64_t end = std::min({t + cut.piece, run + cut.run, length});
        const size_t at = sums.size();
        sums.resize(at + columns);
        for (int64_t r = start + t; r < start + end; ++r)
          for (int64_t c = 0; c < columns; ++c) sums[at + c] += x[r * columns + c];
      }
    start += length;
  }
  return sums;
}

struct Table {
  explicit Table(MaskedPlan& plan) {
    if (plan.table.empty()) return;
    const size_t bytes = plan.table.size() * sizeof(int32_t);
    must(cudaMalloc(&memory, bytes), "cudaMalloc");
    must(cudaMemcpy(memory, plan.table.data(), bytes, cudaMemcpyHostToDevice), "copy of the table");
    plan.place(static_cast<const int32_t*>(memory));
  }
  ~Table() { cudaFree(memory); }
  void* memory = nullptr;
};

void check_case(const Case& c) {
  if (c.group().find(filter) == std::string::npos) return;
  MaskedPlan plan = c.plan();
  const Table table(plan);
  const int64_t kD = c.kD(), n = sum_of(c.keys), m = sum_of(c.queries);
  const Values ho = draw(c.dtype, n * kD, 1.5f), se = draw(c.dtype, m * kD, 1.5f),
               dout = draw(c.dtype, m * kD, 1);
  const Truth truth = solve(c, ho, se, dout);
  const Buffer ho_there(c.dtype, ho, c.shift), se_there(c.dtype, se, c.shift),
      dout_there(c.dtype, dout, c.shift);
  const Buffer out(c.dtype, m * kD, c.shift), sums(Dtype::fp32, plan.slot_count() * kD);
  const Buffer scratch(Dtype::fp32, masked_forward_scratch(plan));
  const MaskedForward forward{ho_there.data(), se_there.data(), scratch.floats(),
                              plan.scans() ? nullptr : sums.floats(), out.data()};
  check(c.group(), c.name(), [&](bool) { return masked_mixer(plan, forward, nullptr); },
        {{"out", out, expected(truth.out), {}}});

  const Buffer dho(c.dtype, n * kD, c.shift), dse(c.dtype, m * kD, c.shift), gated(c.dtype, m * kD, c.shift);
  const Buffer dho_sums(Dtype::fp32, plan.keys.pieces * kD), dse_sums(Dtype::fp32, plan.queries.pieces * kD);
  const Buffer more(Dtype::fp32, masked_backward_scratch(plan));
  MaskedBackward backward{dout_there.data(), ho_there.data(),  se_there.data(), forward.sums,
                          more.floats(),     dho.data(),       dse.data(),      gated.data(),
                          dho_sums.floats(), dse_sums.floats()};
  const auto summed = [&](const Cut& cut, const Lengths& lengths, const Exact& x) {
    return piece_sums(cut, lengths, kD, x);
  };
  // The third time without the sums of the forward pass.
  check(c.group(), c.name(),
        [&](bool alone) {
          backward.sums = alone ? nullptr : forward.sums;
          more.clear();
          return masked_mixer_backward(plan, backward, nullptr);
        },
        {{"dse", dse, expected(truth.dse), {}},
         {"dho", dho, expected(truth.dho, truth.off), {}},
         {"gated", gated, expected(truth.out), {}},
         {"sums of dse", dse_sums, expected(summed(plan.queries, c.queries, truth.dse)), {}},
         {"sums of dho",
          dho_sums,
          expected(summed(plan.keys, c.keys, truth.dho), summed(plan.keys, c.keys, truth.off)),
          {}}});
  const std::vector<uint8_t> both_dse = dse.all(), both_dho = dho.all();
  backward.gated = nullptr, backward.dho_sums = backward.dse_sums = nullptr;
  dse.clear(), dho.clear(), gated.clear();
  must(masked_mixer_backward(plan, backward, nullptr), c.name());
  finish_within(5, c.name());
  expect(dse.all() == both_dse && dho.all() == both_dho, c.group(), c.name() + ": differs without sums");
  expect(gated.guards_stand(gated.all()) && std::isnan(gated.value(gated.all(), 0)), c.group(),
         c.name() + ": gated values that nobody asked for");
}

// A token that is not a number reaches those that see it, and nobody else; in the gradients likewise.
void check_unseen(const Case& c, int64_t bad) {
  if (c.group().find(filter) == std::string::npos) return;
  MaskedPlan plan = c.plan();
  const Table table(plan);
  const int64_t kD = c.kD(), n = c.keys[0];
  Values ho = draw(c.dtype, n * kD, 1), se = draw(c.dtype, n * kD, 1), dout = se;
  std::fill_n(ho.begin() + bad * kD, kD, std::numeric_limits<float>::quiet_NaN());
  const Buffer se_there(c.dtype, se), out(c.dtype, n * kD),
      scratch(Dtype::fp32, masked_forward_scratch(plan));
  {
    const Buffer ho_there(c.dtype, ho);
    must(masked_mixer(plan, {ho_there.data(), se_there.data(), scratch.floats(), nullptr, out.data()},
                      nullptr),
         c.name());
    finish_within(5, c.name());
  }
  const std::vector<uint8_t> got = out.all();
  for (int64_t t = 0; t < n; ++t) {
    const auto [first, end] = c.sees(0, t);
    expect(std::isnan(out.value(got, t * kD)) == (first <= bad && bad < end), c.group(),
           c.name() + text(": token %lld not a number, query %lld", static_cast<long long>(bad),
                           static_cast<long long>(t)));
  }
  std::fill_n(dout.begin() + bad * kD, kD, std::numeric_limits<float>::quiet_NaN());
  const Values fine = draw(c.dtype, n * kD, 1);
  const Buffer ho_there(c.dtype, fine), dout_there(c.dtype, dout), dho(c.dtype, n * kD), dse(c.dtype, n * kD);
  const Buffer more(Dtype::fp32, masked_backward_scratch(plan));
  must(masked_mixer_backward(plan,
                             {dout_there.data(), ho_there.data(), se_there.data(), nullptr, more.floats(),
                              dho.data(), dse.data(), nullptr, nullptr, nullptr},
                             nullptr),
       c.name());
  finish_within(5, c.name());
  const std::vector<uint8_t> found = dho.all();
  for (int64_t t = 0; t < n; ++t) {
    const auto [first, end] = c.seen_by(0, t);
    expect(std::isnan(dho.value(found, t * kD)) == (first <= bad && bad < end), c.group(),
           c.name() + text(": gradient %lld not a number, token %lld", static_cast<long long>(bad),
                           static_cast<long long>(t)));
  }
}

// A sequence has the same bits alone, in a batch and packed with others.
void check_alone(int64_t block, int64_t window, Dtype dtype) {
  const Case c{block, window, {5, 1, 203, 0, 331}, {5, 1, 203, 0, 331}, true, 24, 2, dtype, 0};
  if (c.group().find(filter) == std::string::npos) return;
  const int64_t kD = c.kD(), all = sum_of(c.keys), n = 203, first = 6;
  const Values ho = draw(dtype, all * kD, 1), se = draw(dtype, all * kD, 1);
  const auto forward = [&](MaskedPlan plan, const Values& h, const Values& s) {
    const Table table(plan);
    const Buffer a(dtype, h), b(dtype, s), scratch(Dtype::fp32, masked_forward_scratch(plan));
    const Buffer out(dtype, static_cast<int64_t>(s.size()));
    must(masked_mixer(plan, {a.data(), b.data(), scratch.floats(), nullptr, out.data()}, nullptr), c.name());
    finish_within(5, c.name());
    const std::vector<uint8_t> bytes = out.all();
    std::vector<double> values;
    for (int64_t i = 0; i < out.count(); ++i) values.push_back(out.value(bytes, i));
    return values;
  };
  const auto part = [&](const Values& x) {
    return Values(x.begin() + first * kD, x.begin() + (first + n) * kD);
  };
  const std::vector<double> packed = forward(c.plan(), ho, se),
                            alone = forward(masked_plan(c.plan().sizes, 1, n, n), part(ho), part(se));
  expect(std::equal(alone.begin(), alone.end(), packed.begin() + first * kD), c.group(),
         c.name() + ": a sequence differs alone");
}

void check_all() {
  struct Mask {
    int64_t block, window;
  };
  const Mask masks[] = {{1, 0},  {1, 1},  {1, 5},  {1, 16},  {1, 17},  {1, 40},  {1, 300},
                        {2, 0},  {2, 2},  {3, 0},  {3, 2},   {7, 3},   {8, 20},  {32, 0},
                        {33, 2}, {50, 0}, {64, 3}, {1, 999}, {5, 999}, {999, 0}, {999, 7}};
  const Lengths packed{5, 1, 0, 74, 331, 2, 16, 33}, others{3, 40, 0, 1, 100, 0, 2, 64};
  struct Batch {
    Lengths keys;
    bool packed;
  };
  const Batch batches[] = {{{1, 1}, false},     {{7, 7, 7}, false}, {{17}, false}, {{50, 50}, false},
                           {{203, 203}, false}, {{700}, false},     {packed, true}};
  const int64_t widths[] = {24, 5, 264};
  const int orders[] = {2, 1, 3, 4, 7, 6, 16};
  const Dtype dtypes[] = {Dtype::fp32, Dtype::bf16, Dtype::fp16};
  size_t turn = 0;
  const auto check_shapes = [&](Case c) {
    for (size_t o = 0; o < std::size(orders); ++o)
      for (const Dtype dtype : dtypes) {
        ++turn;
        if (quick && turn % 8 != 0) continue;  // each comes with most of the others
        c.order = orders[o], c.dtype = dtype, c.shift = turn / 8 % 3 == 2;
        c.D = widths[turn / 8 % (c.order <= 2 && sum_of(c.keys) < 300 ? 3 : 2)];
        check_case(c);
      }
  };
  for (const Batch& b : batches)
    for (const Mask& mask : masks)
      check_shapes({mask.block, mask.window, b.keys, b.keys, b.packed, 0, 0, Dtype::fp32, 0});
  check_shapes({0, 0, packed, packed, true, 0, 0, Dtype::fp32, 0});
  check_shapes({0, 0, others, packed, true, 0, 0, Dtype::fp32, 0});
  check_shapes({0, 0, {0, 1200, 3}, {4, 2000, 1}, true, 0, 0, Dtype::fp32, 0});

  for (const Mask& mask : masks) {
    for (const int64_t bad : {0, 20, 56})
      check_unseen({mask.block, mask.window, {57}, {57}, false, 3, 2, Dtype::fp32, 0}, bad);
    for (const Dtype dtype : dtypes) check_alone(mask.block, mask.window, dtype);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (!begin(count, arguments)) {
    std::printf("skipped: needs a GPU\n");
    return 77;
  }
  check_all();
  finish();
}
