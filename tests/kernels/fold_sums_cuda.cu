// The sums of tiles and what sequences go on from, folded into means, against sums in fp64 on the host. A
// program of its own, so that it needs nvcc and a GPU but neither torch nor GoogleTest:
//   nvcc -std=c++20 -O3 -gencode=arch=compute_90a,code=sm_90a -I. tests/kernels/fold_sums_cuda.cu
//   pom/kernels/sm90/gemm/*.cu -o fold_sums_cuda
//   ./fold_sums_cuda [--quick] [filter]      "fold fp32"
// B sequences of n runs of K rows, N columns, W sums kept.
#include "tests/kernels/host_check.cuh"

#include "pom/kernels/sm90/gemm/gemm.h"

namespace {

struct Case {
  int64_t batch, runs, run_tokens, columns, window;
};

// What the tiles of random rows leave: slot tile + run has the sum of those rows of a tile that are in a run.
struct Rows {
  Values partial;
  std::vector<double> sums, sizes;  // of each run and column, of the values and of their magnitudes
};
Rows rows_of(const Case& c) {
  constexpr int64_t tile = 128;
  const int64_t rows = c.batch * c.runs * c.run_tokens, slots = (rows + tile - 1) / tile + c.batch * c.runs;
  Rows r{Values(slots * c.columns, 0.0f), {}, {}};
  r.sums.assign(c.batch * c.runs * c.columns, 0), r.sizes = r.sums;
  const Values values = draw(Dtype::fp32, rows * c.columns, 1);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t n = 0; n < c.columns; ++n) {
      const int64_t run = row / c.run_tokens;
      r.partial[(row / tile + run) * c.columns + n] += values[row * c.columns + n];
    }
  // Summed of what the kernel reads, not of the values: adding up a tile's rows is not its work.
  for (int64_t run = 0; run < c.batch * c.runs; ++run)
    for (int64_t t = run * c.run_tokens / tile; t <= ((run + 1) * c.run_tokens - 1) / tile; ++t)
      for (int64_t n = 0; n < c.columns; ++n) {
        const double part = r.partial[(t + run) * c.columns + n];
        r.sums[run * c.columns + n] += part, r.sizes[run * c.columns + n] += std::abs(part);
      }
  return r;
}

void check_past(const Case& c) {
  const int64_t kept = std::max<int64_t>(c.window, 1), N = c.columns;
  const Rows rows = rows_of(c);
  const Values past = draw(Dtype::fp32, c.batch * kept * N, 10), seen = draw(Dtype::fp32, c.runs, 5, 300);
  std::vector<Expected> H(c.batch * c.runs * N), left(c.batch * kept * N);
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t n = 0; n < N; ++n) {
      std::vector<double> sums, sizes;  // of what is kept, then of the runs
      for (int64_t i = 0; i < kept; ++i)
        sums.push_back(past[(b * kept + i) * N + n]), sizes.push_back(std::abs(sums.back()));
      for (int64_t j = 0; j < c.runs; ++j)
        sums.push_back(rows.sums[(b * c.runs + j) * N + n]),
            sizes.push_back(rows.sizes[(b * c.runs + j) * N + n]);
      double total = 0, size = 0;
      const double step = std::ldexp(1.0, -24) * static_cast<double>(c.runs * c.run_tokens / 64 + kept + 8);
      for (int64_t j = 0; j < c.runs; ++j) {
        total = size = 0;
        for (int64_t i = c.window > 0 ? j + 1 : 0; i <= kept + j; ++i) total += sums[i], size += sizes[i];
        H[(b * c.runs + j) * N + n] = {total / seen[j], step * size / seen[j]};
      }
      for (int64_t i = 0; i < kept; ++i)
        left[(b * kept + i) * N + n] = c.window > 0 ? Expected{sums[c.runs + i], step * sizes[c.runs + i]}
                                                    : Expected{total, step * size};
    }
  // Scales for e4m3, of each run and of each sequence.
  std::vector<Expected> of_runs(c.batch * c.runs, Expected{6e-13, 1e-14}), of_sequences(c.batch, of_runs[0]);
  for (int64_t i = 0; i < c.batch * c.runs * N; ++i) {
    const Expected scale{std::abs(H[i].value) / 448, H[i].error / 448 + std::abs(H[i].value) * 1e-9};
    for (Expected* const greatest : {&of_runs[i / N], &of_sequences[i / N / c.runs]})
      *greatest = {std::max(greatest->value, scale.value), std::max(greatest->error, scale.error)};
  }
  const Buffer partial(Dtype::fp32, rows.partial), before(Dtype::fp32, past), counts(Dtype::fp32, seen);
  const Buffer means(Dtype::fp32, c.batch * c.runs * N), after(Dtype::fp32, c.batch * kept * N);
  FoldParams p;
  p.sizes = {c.batch, c.runs * c.run_tokens, 0, N}, p.runs = {c.run_tokens}, p.partial = partial.floats();
  p.causal = true, p.window = c.window, p.H = means.floats();
  p.past = before.floats(), p.left = after.floats(), p.seen = counts.floats();
  const Buffer scales_of_runs(Dtype::fp32, c.batch * c.runs), scales(Dtype::fp32, c.batch);
  for (const bool of_each : {false, true}) {
    p.largest_of_runs = of_each, p.largest = of_each ? scales_of_runs.floats() : scales.floats();
    check("fold fp32",
          text("%d x %d runs of %d, %d columns, window %d, a scale for each %s", static_cast<int>(c.batch),
               static_cast<int>(c.runs), static_cast<int>(c.run_tokens), static_cast<int>(N),
               static_cast<int>(c.window), of_each ? "run" : "sequence"),
          [&](bool) { return fold_sums(p, nullptr); },
          {{"H", means, H, {}},
           {"left", after, left, {}},
           {"scales", of_each ? scales_of_runs : scales, of_each ? of_runs : of_sequences, {}}});
  }
}

void check_refusals() {
  const Buffer floats(Dtype::fp32, 4096), others(Dtype::fp32, 4096);
  FoldParams good;
  good.sizes = {1, 16, 0, 8}, good.runs = {16}, good.partial = floats.floats(), good.causal = true;
  good.H = others.floats(), good.past = floats.floats() + 1024, good.left = others.floats() + 1024;
  good.seen = floats.floats() + 2048;
  expect(fold_sums(good, nullptr) == cudaSuccess, "refusals", "what is right was refused");
  const auto refused = [&](const char* what, const auto& change) {
    FoldParams p = good;
    change(p);
    expect(fold_sums(p, nullptr) != cudaSuccess, "refusals", std::string(what) + " was taken");
  };
  refused("a past without causal", [](FoldParams& p) { p.causal = false; });
  refused("a past without room for what is left", [](FoldParams& p) { p.left = nullptr; });
  refused("a past that is what is left", [](FoldParams& p) { p.left = const_cast<float*>(p.past); });
  refused("a past without numbers of tokens", [](FoldParams& p) { p.seen = nullptr; });
  refused("a past with counts", [](FoldParams& p) { p.counts = p.seen; });
}

}  // namespace

int main(int count, char** arguments) {
  if (!begin(count, arguments) || !gemm_device())
    return std::printf("skipped: needs a GPU of compute capability 9.0\n"), 77;
  check_refusals();
  if (wanted("fold", Dtype::fp32))
    for (const int64_t batch : {1, 2, 3})
      for (const int64_t runs : {1, 2, 3, 10, 20})
        for (const int64_t run_tokens : {16, 100, 128, 360})
          for (const int64_t window : {0, 1, 2, 3, 8})
            if (!quick || (batch != 3 && run_tokens != 128))
              check_past({batch, runs, run_tokens, 40, window});
  finish();
}
