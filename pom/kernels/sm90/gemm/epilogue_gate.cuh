// The epilogue of the mixer's queries, sigmoid(tile) * H: see GateEpilogue in gemm.h. The gate is also in
// epilogues_backward.cuh (its gradient), scan/scan_epilogues.cuh (causal), network/block_stack_kernel.cuh,
// decode/stack_step_gemms.cuh, and without sm90 in portable/few_rows_gemm.cu and portable/mixer.cu.
#pragma once

#include "pom/kernels/sm90/gemm/epilogue_parts.cuh"

namespace pom::kernels {

template <class In, class Out, Keeps keeps, GateRuns kRuns>
struct GateEpilogueOf {
  struct Params {
    Affine affine;
    RunShape runs;
    const float* H;
    Out* out;
    Wide<In>* before;
    const float* out_scale;
    const float* partial;  // sums of tiles instead of H: see gate_takes_sums()
  };
  static constexpr int kFirst = 2, kSecond = 4;  // the rows of shared memory with H of a tile's two runs

  __device__ static bool one_run(const GemmShape& s, const TilePlace& at, const Params& p, int rows) {
    return p.runs.of(at.row) == p.runs.of(min(at.row + rows, s.rows) - 1);
  }
  // What H is multiplied by for a row.
  __device__ static float factor(const Params& p, int row) {
    if constexpr (kScaled<Out>) return kFold<In> / p.out_scale[row / p.runs.tokens];
    return kFold<In>;
  }
  template <class Traits>
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    constexpr int kRows = 64 * Traits::MM;
    const bool known = !p.partial && (kRuns != GateRuns::any || one_run(s, at, p, kRows));
    const float* H = p.H + static_cast<int64_t>(p.runs.of(at.row)) * s.columns;
    prepare_columns<Traits>(s, at, p.affine, known ? H : nullptr, kFold<In>, factor(p, at.row));
    if constexpr (kRuns == GateRuns::two) prepare_second<Traits>(s, at, p, min(at.row + kRows, s.rows) - 1);
    if constexpr (kRuns == GateRuns::one)
      if (p.partial) prepare_sums<Traits>(s, at, p);
  }
  // H of the last row's run, which may be the first's too.
  template <class Traits>
  __device__ static void prepare_second(const GemmShape& s, const TilePlace& at, const Params& p, int last) {
    const float* const H = p.H + static_cast<int64_t>(p.runs.of(last)) * s.columns + at.column;
    const float own = factor(p, last);
    for (int c = at.thread; c < Traits::TN; c += kWarpgroup)
      at.shared[kSecond * Traits::TN + c] = at.column + c < s.columns ? own * H[c] : 0;
  }
  template <class Traits>
  __device__ static void prepare_sums(const GemmShape& s, const TilePlace& at, const Params& p) {
    const int sequence = at.row / p.runs.tokens, tiles = p.runs.tokens / kTileRows;
    const float* sums = p.partial + static_cast<int64_t>(sequence * tiles + sequence) * s.columns + at.column;
    for (int c = at.thread; c < Traits::TN && at.column + c < s.columns; c += kWarpgroup) {
      float total = 0;
#pragma unroll 4
      for (int t = 0; t < tiles; ++t) total += sums[static_cast<int64_t>(t) * s.columns + c];
      at.shared[kFirst * Traits::TN + c] = kFold<In> * (total / static_cast<float>(p.runs.tokens));
    }
  }

  // Of a tile of one run, of two, and of any number. What `at` returns belongs to a pair of columns.
  template <class Traits>
  struct OneRun {
    const TilePlace& place;
    __device__ float2 at(int j) const { return prepared<Traits>(place, kFirst, j); }
    __device__ float2 operator()(int, int, int, float2 v, float2 h) const {
      return make_float2(folded_gate<In>(v.x, h.x), folded_gate<In>(v.y, h.y));
    }
  };
  template <class Traits>
  struct TwoRuns {
    const TilePlace& place;
    bool second[Traits::MM][2];
    __device__ TwoRuns(const TilePlace& at, const RunShape& runs) : place(at) {
      const int start = runs.end_of(at.row);  // of the second
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) second[mm][half] = at.row_of(mm, half) >= start;
    }
    __device__ float4 at(int j) const {
      const float2 one = prepared<Traits>(place, kFirst, j), two = prepared<Traits>(place, kSecond, j);
      return make_float4(one.x, one.y, two.x, two.y);
    }
    __device__ float2 operator()(int mm, int half, int, float2 v, const float4& h) const {
      const bool later = second[mm][half];
      return make_float2(folded_gate<In>(v.x, later ? h.z : h.x), folded_gate<In>(v.y, later ? h.w : h.y));
    }
  };
  template <class Traits>
  struct AnyRuns {
    struct Nothing {};
    const TilePlace& place;
    const Params& p;
    int rows, columns;
    __device__ Nothing at(int) const { return {}; }
    __device__ float2 operator()(int mm, int half, int column, float2 v, Nothing) const {
      const int row = min(place.row_of(mm, half), rows - 1);
      float2 h = make_float2(0, 0);
      if (column < columns) h = pair_at(p.H + static_cast<int64_t>(p.runs.of(row)) * columns, column);
      const float own = factor(p, row);
      return make_float2(folded_gate<In>(v.x, own * h.x), folded_gate<In>(v.y, own * h.y));
    }
  };
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    if (keeps != Keeps::nothing && p.before)
      store_tile<Traits, true>(acc, s, at, p.affine, p.before, Plain{1 / kFold<In>}, kFold<In>);
    const auto store = [&](const auto& gated) {
      store_tile<Traits, keeps == Keeps::before>(acc, s, at, p.affine, p.out, gated, kFold<In>);
    };
    if constexpr (kRuns == GateRuns::two)
      store(TwoRuns<Traits>(at, p.runs));
    else if (kRuns == GateRuns::one || one_run(s, at, p, 64 * Traits::MM))
      store(OneRun<Traits>{at});
    else if constexpr (kRuns == GateRuns::any)
      store(AnyRuns<Traits>{at, p, s.rows, s.columns});
  }
};

}  // namespace pom::kernels
