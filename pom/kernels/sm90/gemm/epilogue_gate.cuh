// The epilogue of the mixer's queries, sigmoid(tile) * H: see GateEpilogue in gemm.h. The gate is also in
// epilogues_backward.cuh (its gradient), scan/scan_epilogues.cuh (causal), network/block_stack_kernel.cuh,
// decode/stack_step_gemms.cuh, and without sm90 in portable/few_rows_gemm.cu and portable/mixer.cu.
#pragma once

#include "pom/kernels/sm90/gemm/epilogue_parts.cuh"

namespace pom::kernels {

template <class In, class Out, Keeps keeps>
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
  __device__ static bool one_run(const GemmShape& s, const TilePlace& at, const Params& p, int TM) {
    return p.runs.of(at.row) == p.runs.of(min(at.row + TM, s.rows) - 1);
  }
  template <class Traits>
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    const float* H = p.H + static_cast<int64_t>(p.runs.of(at.row)) * s.columns;
    float own = kFold<In>;
    if constexpr (kScaled<Out>) own /= p.out_scale[at.row / p.runs.tokens];
    prepare_columns<Traits>(s, at, p.affine, !p.partial && one_run(s, at, p, Traits::TM) ? H : nullptr,
                            kFold<In>, own);
    if (!p.partial) return;
    const int sequence = at.row / p.runs.tokens, tiles = p.runs.tokens / kTileRows;
    const float* sums = p.partial + static_cast<int64_t>(sequence * tiles + sequence) * s.columns + at.column;
    for (int c = at.thread; c < Traits::TN && at.column + c < s.columns; c += kWarpgroup) {
      float total = 0;
#pragma unroll 4
      for (int t = 0; t < tiles; ++t) total += sums[static_cast<int64_t>(t) * s.columns + c];
      at.shared[2 * Traits::TN + c] = kFold<In> * (total / static_cast<float>(p.runs.tokens));
    }
  }
  // With One the whole tile is of one run.
  template <bool One, class Traits>
  struct Gated {
    const float *H, *out_scale;
    RunShape runs;
    TilePlace place;
    int rows, columns;

    __device__ int row(int mm, int half) const { return min(place.row_of(mm, half), rows - 1); }
    __device__ float2 read(int row, int column, bool inside) const {
      if (!inside) return make_float2(0, 0);
      return pair_at(H + static_cast<int64_t>(runs.of(row)) * columns, column);
    }
    __device__ float2 at(int j) const { return One ? prepared<Traits>(place, 2, j) : make_float2(0, 0); }
    __device__ float2 operator()(int mm, int half, int column, float2 v, float2 h) const {
      if constexpr (!One) {
        h = read(row(mm, half), column, column < columns);
        const float i = kScaled<Out> ? kFold<In> / out_scale[row(mm, half) / runs.tokens] : kFold<In>;
        h.x *= i, h.y *= i;
      }
      return make_float2(folded_gate<In>(v.x, h.x), folded_gate<In>(v.y, h.y));
    }
  };
  template <bool One, class Traits, class Acc>
  __device__ static void run(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    const Gated<One, Traits> f{p.H, p.out_scale, p.runs, at, s.rows, s.columns};
    store_tile<Traits, keeps == Keeps::before>(acc, s, at, p.affine, p.out, f, kFold<In>);
  }
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    if (keeps != Keeps::nothing && p.before)
      store_tile<Traits, true>(acc, s, at, p.affine, p.before, Plain{1 / kFold<In>}, kFold<In>);
    if constexpr (keeps != Keeps::any)
      run<true, Traits>(acc, s, at, p);
    else if (one_run(s, at, p, Traits::TM))
      run<true, Traits>(acc, s, at, p);
    else
      run<false, Traits>(acc, s, at, p);
  }
};

}  // namespace pom::kernels
