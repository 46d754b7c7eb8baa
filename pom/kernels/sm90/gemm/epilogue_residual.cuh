// The epilogue that adds a gated tile to the residual stream: see ResidualEpilogue in gemm.h.
#pragma once

#include "pom/kernels/sm90/gemm/epilogue_parts.cuh"

namespace pom::kernels {

template <class In>
struct ResidualEpilogueOf {
  struct Params {
    Affine affine;
    float* x;
    const float* gate;
    int64_t gate_stride;
    int tokens;
  };
  __device__ static bool one_sequence(const GemmShape& s, const TilePlace& at, const Params& p, int rows) {
    return at.row / p.tokens == (min(at.row + rows, s.rows) - 1) / p.tokens;
  }
  template <class Traits>
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    const float* gate = p.gate + at.row / p.tokens * p.gate_stride;
    prepare_columns<Traits>(s, at, p.affine, one_sequence(s, at, p, 64 * Traits::MM) ? gate : nullptr);
  }
  // x += v by the cache itself, so that x does not come here. A place has one addition in a kernel, and
  // with splits one for each, which wait for each other: there is no order that its value could depend on.
  __device__ static void add_to(float* x, float2 v) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(x), "f"(v.x), "f"(v.y) : "memory");
  }
  // With One the whole tile is of one sequence. Columns are not dealt out: a quad's four pairs are the 32
  // bytes that the cache adds to at a time.
  template <bool One, class Traits, class Acc>
  __device__ static void run(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    static_assert(!Traits::kDealt);
#pragma unroll
    for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = at.row_of(mm, half);
        if (row >= s.rows) continue;
        float* const x = p.x + static_cast<int64_t>(row) * s.columns;
        const float* const gates = p.gate + row / p.tokens * p.gate_stride;
        const float scale = prepared_row<Traits>(s, at, p.affine, mm, half);
#pragma unroll
        for (int j = 0; j < Traits::TN / 8; ++j) {
          const int c = at.column + at.offset_of<false>(j);
          if (c >= s.columns) continue;
          const float* const v = &acc[mm][4 * j + 2 * half];
          const float2 y = ColumnPair<Traits>(at, j).of(v[0], v[1], scale);
          const float2 gate = One ? prepared<Traits>(at, 2, j) : pair_at(gates, c);
          add_to(x + c, make_float2(gate.x * y.x, gate.y * y.y));
        }
      }
  }
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    if (one_sequence(s, at, p, 64 * Traits::MM))
      run<true, Traits>(acc, s, at, p);
    else
      run<false, Traits>(acc, s, at, p);
  }
};

}  // namespace pom::kernels
