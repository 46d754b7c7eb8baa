// What a warpgroup does with a finished tile: see product.h.
#pragma once

#include "pom/kernels/product_storing.cuh"
#include "pom/kernels/product_sums_tail.cuh"

namespace pom::kernels {

// What a kernel stores beside the result. It does nothing else, because that would cost registers.
enum class Keeps {
  nothing,
  before,  // what was before the activation
  any,     // before where it is asked for; and of a gate, tiles may have rows of several runs, else of one
};

template <class In, class Out, Keeps keeps>
struct StoreTailOf {
  static_assert(keeps != Keeps::any);
  static constexpr bool kPassing = keeps == Keeps::before;
  struct Params {
    Affine affine;
    Out* out;
    Wide<In>* before;
    const float* out_scale;
    bool gelu;
  };
  // 1 / what the columns are multiplied by
  __device__ static float back_of(const Params& p) {
    const float back = p.gelu ? 1 / kFold<In> : 1.0f;
    if constexpr (kScaled<Out>) return back * *p.out_scale;
    return back;
  }
  template <class Traits>
  __device__ static void prepare(const ProductShape& s, const TilePlace& at, const Params& p) {
    prepare_columns<Traits>(s, at, p.affine, nullptr, 1 / back_of(p));
  }
  struct Nothing {};
  struct Gelu {
    FoldedGelu scaled;
    __device__ Nothing at(int) const { return {}; }
    __device__ float2 operator()(int, int, int, float2 v, Nothing) const {
      if constexpr (kScaled<Out>) return make_float2(scaled(v.x), scaled(v.y));
      if constexpr (std::is_same_v<In, __half>) return make_float2(gelu<__half>(v.x), gelu<__half>(v.y));
      return make_float2(FoldedGelu(2)(v.x), FoldedGelu(2)(v.y));
    }
  };
  struct Same {
    __device__ Nothing at(int) const { return {}; }
    __device__ float2 operator()(int, int, int, float2 v, Nothing) const { return v; }
  };
  // One branch for all values: with one for each there would be nothing to overlap.
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    const float back = back_of(p), factor = p.gelu ? kFold<In> : 1.0f;  // scaled columns have theirs
    // Always so; but without the branch the compiler would keep values from one pass to the next, and spill.
    if (keeps == Keeps::before && p.before)
      store_tile<Traits, kPassing>(acc, s, at, p.affine, p.before, Plain{back}, factor);
    if (p.gelu)
      store_tile<Traits, kPassing>(acc, s, at, p.affine, p.out, Gelu{FoldedGelu(back)}, factor);
    else
      store_tile<Traits, kPassing>(acc, s, at, p.affine, p.out, Same(), factor);
  }
};

template <class In, class Out, Keeps keeps>
struct GateTailOf {
  struct Params {
    Affine affine;
    RunShape runs;
    const float* H;
    Out* out;
    Wide<In>* before;
    const float* out_scale;
    const float* partial;  // sums of tiles instead of H: see gate_takes_sums()
  };
  __device__ static bool one_run(const ProductShape& s, const TilePlace& at, const Params& p, int TM) {
    return p.runs.of(at.row) == p.runs.of(min(at.row + TM, s.rows) - 1);
  }
  template <class Traits>
  __device__ static void prepare(const ProductShape& s, const TilePlace& at, const Params& p) {
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
  __device__ static void run(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    const Gated<One, Traits> f{p.H, p.out_scale, p.runs, at, s.rows, s.columns};
    store_tile<Traits, keeps == Keeps::before>(acc, s, at, p.affine, p.out, f, kFold<In>);
  }
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
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

template <class In>
struct ResidualTailOf {
  struct Params {
    Affine affine;
    float* x;
    const float* gate;
    int64_t gate_stride;
    int tokens;
  };
  __device__ static bool one_sequence(const ProductShape& s, const TilePlace& at, const Params& p, int TM) {
    return at.row / p.tokens == (min(at.row + TM, s.rows) - 1) / p.tokens;
  }
  template <class Traits>
  __device__ static void prepare(const ProductShape& s, const TilePlace& at, const Params& p) {
    const float* gate = p.gate + at.row / p.tokens * p.gate_stride;
    prepare_columns<Traits>(s, at, p.affine, one_sequence(s, at, p, Traits::TM) ? gate : nullptr);
  }
  // x += v by the cache itself, so that x does not come here. A place has one addition in a kernel: there is
  // no order that its value could depend on.
  __device__ static void add_to(float* x, float2 v) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(x), "f"(v.x), "f"(v.y) : "memory");
  }
  // With One the whole tile is of one sequence. Columns are not dealt out: a quad's four pairs are the 32
  // bytes that the cache adds to at a time.
  template <bool One, class Traits, class Acc>
  __device__ static void run(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
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
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    if (one_sequence(s, at, p, Traits::TM))
      run<true, Traits>(acc, s, at, p);
    else
      run<false, Traits>(acc, s, at, p);
  }
};

}  // namespace pom::kernels
