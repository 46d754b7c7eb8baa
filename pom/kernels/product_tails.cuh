// What a warpgroup does with a finished tile: see product.h. A thread holds pairs of neighbouring columns;
// four threads (a quad) hold eight columns of a row.
#pragma once

#include "pom/kernels/mixer_math.cuh"
#include "pom/kernels/product_kernel.cuh"

namespace pom::kernels {

template <class T>
constexpr bool kScaled = std::is_same_v<T, __nv_fp8_e4m3>;

// The 16-bit type beside fp8, for what is kept in full.
template <class In>
using Wide = std::conditional_t<kScaled<In>, __nv_bfloat16, In>;

// ---- activations: in a tail every instruction counts. Beside bf16 and fp8 they use the hardware's tanh,
// which is off by up to 2^-11: of a sigmoid at most 2.5e-4 and of a GELU 2.5e-4 |x|, an eighth of a bf16
// rounding of what an open gate lets through. Beside fp16 that would show. ----

// x (1 + tanh(x p(x^2))) / 2, p fitted to the exact GELU within 2.6e-5.
__device__ __forceinline__ float tanh_gelu(float x) {
  const float t = fminf(x * x, 25.0f), half = 0.5f * x;
  const float p = fmaf(t, fmaf(t, -3.51596e-4f, 3.7006017e-2f), 0.79750756f);
  return fmaf(half, fast_tanh(x * p), half);
}
// What the columns of a tail are multiplied by before its activation; fp16 takes the value itself.
template <class In>
constexpr float kFold = std::is_same_v<In, __half> ? 1.0f : 0.5f;

// 2 factor GELU(z) of y = factor z, for one factor, given as 1 / factor: y (1 + tanh(y (a + b y^2))), with a
// and b fitted within 3.3e-4. Factor and an output's scale are in bias and scales of the columns, so that y
// comes out of the product.
struct FoldedGelu {
  float a, b;
  __device__ explicit FoldedGelu(float back) : a(kTanhGelu * back), b(kTanhGeluCube * back * back * back) {}
  __device__ __forceinline__ float operator()(float y) const {
    return fmaf(y, fast_tanh(y * fmaf(y * y, b, a)), y);
  }
};
// GELU of z for y = kFold z, in bf16 with a longer polynomial where it will be averaged.
template <class In>
__device__ __forceinline__ float folded_gelu(float y) {
  if constexpr (std::is_same_v<In, __half>) return gelu<__half>(y);
  if constexpr (kScaled<In>) return FoldedGelu(2)(y);
  const float t = __saturatef(0.16f * y * y);  // min(z^2, 25) / 25
  const float p = fmaf(t, fmaf(t, -3.51596e-4f * 1250, 3.7006017e-2f * 50), 0.79750756f * 2);
  return fmaf(y, fast_tanh(y * p), y);
}
// 0.4 GELU(z) of y = z / 5: a factor that may come later, and then the square is cut off for nothing.
__device__ __forceinline__ float fifth_gelu(float y) {
  const float t = __saturatef(y * y);
  const float p = fmaf(t, fmaf(t, -3.51596e-4f * 3125, 3.7006017e-2f * 125), 0.79750756f * 5);
  return fmaf(y, fast_tanh(y * p), y);
}
// sigmoid(z) h for y = kFold z and half = kFold h
template <class In>
__device__ __forceinline__ float folded_gate(float y, float half) {
  if constexpr (std::is_same_v<In, __half>) return fast_reciprocal(1.0f + fast_exp2(-1.44269504f * y)) * half;
  return fmaf(half, fast_tanh(y), half);
}

template <class In>
__device__ __forceinline__ float tail_gelu(float x) {
  if constexpr (std::is_same_v<In, __half>) return gelu<__half>(x);
  return tanh_gelu(x);
}
// sigmoid(x) h
template <class In>
__device__ __forceinline__ float tail_gate(float x, float h) {
  if constexpr (std::is_same_v<In, __half>) return fast_reciprocal(1.0f + fast_exp2(-1.44269504f * x)) * h;
  return fmaf(0.5f * h, fast_tanh(0.5f * x), 0.5f * h);
}

// The affine half of a product: what the accumulators stand for.
struct Affine {
  const float *bias, *a_scale, *w_scale;
  int scale_rows;  // of a scale of a
};
inline Affine affine_of(const Product& p) {
  return {p.bias, p.a_scale, p.w_scale, static_cast<int>(p.scale_rows)};
}

// Not the read-only cache: the kernel before may be writing it while this one starts.
__device__ __forceinline__ float2 pair_at(const float* p, int column) {
  return *reinterpret_cast<const float2*>(p + column);
}

template <class In>
__device__ __forceinline__ float row_scale_of(const Affine& f, int row, bool inside) {
  if constexpr (kScaled<In>) return inside ? f.a_scale[f.scale_rows == 1 ? row : row / f.scale_rows] : 1.0f;
  return 1.0f;
}
// Whether the rows' scales wait in shared memory too, where there is room for those of a tile.
template <class Traits>
constexpr bool kRowsPrepared = kScaled<typename Traits::In> ? Traits::TN >= Traits::TM : false;

// While the other warpgroup multiplies, what belongs to the tile's columns comes into shared memory: bias,
// weight scales, and a row of the tail's own (null: none), each TN floats. What the product gives will be
// multiplied by `factor`, where there are no scales by ColumnPair::of; the tail's own is by `own_factor`.
template <class Traits>
__device__ __forceinline__ void prepare_columns(const ProductShape& s, const TilePlace& at, const Affine& f,
                                                const float* own, float factor = 1, float own_factor = 1) {
  constexpr int TN = Traits::TN;
  for (int c = at.thread; c < TN; c += kWarpgroup) {
    const int column = at.column + c;
    const bool inside = column < s.columns;
    at.shared[c] = inside && f.bias ? factor * __ldg(f.bias + column) : 0;
    if constexpr (kScaled<typename Traits::In>)
      at.shared[TN + c] = inside ? factor * __ldg(f.w_scale + column) : 1;
    if (own) at.shared[2 * TN + c] = inside ? own_factor * own[column] : 0;
  }
  if constexpr (kRowsPrepared<Traits>)
    at.shared[3 * TN + at.thread] =
        row_scale_of<typename Traits::In>(f, min(at.row + at.thread, s.rows - 1), true);
}
template <class Traits>
__device__ __forceinline__ float prepared_row(const ProductShape& s, const TilePlace& at, const Affine& f,
                                              int mm, int half) {
  if constexpr (kRowsPrepared<Traits>)
    return at.shared[3 * Traits::TN + at.row_of(mm, half) - at.row];
  else
    return row_scale_of<typename Traits::In>(f, min(at.row_of(mm, half), s.rows - 1), true);
}
template <class Traits>
__device__ __forceinline__ float2 prepared(const TilePlace& at, int row, int j) {
  return *reinterpret_cast<const float2*>(at.shared + row * Traits::TN + at.offset_of<Traits::kDealt>(j));
}

// Bias and weight scale of a pair of columns, of group j of the tile.
template <class Traits>
struct ColumnPair {
  using In = typename Traits::In;
  float2 bias, scale;
  __device__ ColumnPair(const TilePlace& at, int j)
      : bias(prepared<Traits>(at, 0, j)),
        scale(kScaled<In> ? prepared<Traits>(at, 1, j) : make_float2(1, 1)) {}
  __device__ float2 of(float x, float y, float row_scale, float factor = 1) const {
    if constexpr (kScaled<In>)
      return make_float2(fmaf(x, row_scale * scale.x, bias.x), fmaf(y, row_scale * scale.y, bias.y));
    else
      return make_float2(fmaf(x, factor, bias.x), fmaf(y, factor, bias.y));
  }
};

// ---- storing: of four groups of eight columns a thread stores a whole one ----

template <class Out>
__device__ __forceinline__ uint32_t pack_pair(float2 v) {
  if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(v.x, v.y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else if constexpr (std::is_same_v<Out, __half>) {
    const __half2 pair = __floats2half2_rn(v.x, v.y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    return __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
  }
}

__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int quad) {
  const bool odd = quad & 1, upper = quad & 2;
  const uint32_t r0 = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], 1);
  const uint32_t r1 = __shfl_xor_sync(0xffffffffu, odd ? w[2] : w[3], 1);
  const uint32_t low0 = odd ? r0 : w[0], low1 = odd ? w[1] : r0;
  const uint32_t high0 = odd ? r1 : w[2], high1 = odd ? w[3] : r1;
  const uint32_t t0 = __shfl_xor_sync(0xffffffffu, upper ? low0 : high0, 2);
  const uint32_t t1 = __shfl_xor_sync(0xffffffffu, upper ? low1 : high1, 2);
  w[0] = upper ? t0 : low0, w[1] = upper ? t1 : low1;
  w[2] = upper ? high0 : t0, w[3] = upper ? high1 : t1;
}

// Four packed pairs of a row, groups first .. first + 3 of the tile; columns is a multiple of 8.
template <bool Dealt, class Out>
__device__ __forceinline__ void store_groups(Out* out, int row, bool inside, int first_column, int columns,
                                             uint32_t (&w)[4], int quad) {
  if constexpr (!Dealt) transpose_quad(w, quad);
  const int column = first_column + 8 * quad;
  if (!inside || column >= columns) return;
  Out* to = out + static_cast<int64_t>(row) * columns + column;
  if constexpr (sizeof(Out) == 2) {
    *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
  } else {
    *reinterpret_cast<uint2*>(to) = make_uint2(w[0] | w[1] << 16, w[2] | w[3] << 16);
  }
}
template <class Out>
__device__ __forceinline__ void store_pair(Out* out, int row, bool inside, int column, int columns,
                                           uint32_t w) {
  if (!inside || column >= columns) return;
  Out* to = out + static_cast<int64_t>(row) * columns + column;
  if constexpr (sizeof(Out) == 2)
    *reinterpret_cast<uint32_t*>(to) = w;
  else
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(w);
}

// Four values of e4m3 in one word.
__device__ __forceinline__ uint32_t pack_four(float2 low, float2 high) {
  uint32_t word;
  asm("{\n.reg .b16 l, h;\ncvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n"
      "mov.b32 %0, {l, h};\n}"
      : "=r"(word)
      : "f"(low.x), "f"(low.y), "f"(high.x), "f"(high.y));
  return word;
}

// Four groups of a thread's row: eight values in a row where columns are dealt out.
template <bool Dealt, class Out>
struct FourGroups {
  static constexpr bool kFours = Dealt && sizeof(Out) == 1;  // words of four values, else of pairs
  uint32_t words[kFours ? 2 : 4];
  __device__ __forceinline__ void set(int g, float2 now, float2& last) {
    if constexpr (!kFours)
      words[g] = pack_pair<Out>(now);
    else if (g % 2 == 1)
      words[g / 2] = pack_four(last, now);
    last = now;
  }
};

// Where a thread stores rows of dealt columns: addresses are worked out once, not for every word.
template <class Traits, class Out>
struct DealtRows {
  Out* to;
  int eight;  // rows further down
  bool inside[Traits::MM][2];
  int columns;  // from the thread's first on
  __device__ __forceinline__ DealtRows(Out* out, const ProductShape& s, const TilePlace& at)
      : to(out + static_cast<int64_t>(at.row_of(0, 0)) * s.columns + at.column + 8 * at.quad()),
        eight(8 * s.columns),
        columns(s.columns - at.column - 8 * at.quad()) {
#pragma unroll
    for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half) inside[mm][half] = at.row_of(mm, half) < s.rows;
  }
  __device__ __forceinline__ void store(int mm, int half, int first, const FourGroups<true, Out>& v) const {
    Out* const here = to + static_cast<int64_t>(eight) * (8 * mm + half) + 8 * first;
    if constexpr (sizeof(Out) == 2) {
      if (inside[mm][half] && columns > 8 * first)
        *reinterpret_cast<uint4*>(here) = make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]);
    } else {
      if (inside[mm][half] && columns > 8 * first)
        *reinterpret_cast<uint2*>(here) = make_uint2(v.words[0], v.words[1]);
    }
  }
};
template <class Traits, class Out>
struct PairRows {
  Out* out;
  const ProductShape& s;
  const TilePlace& at;
  __device__ __forceinline__ PairRows(Out* out, const ProductShape& s, const TilePlace& at)
      : out(out), s(s), at(at) {}
  __device__ __forceinline__ void store(int mm, int half, int first, FourGroups<false, Out>& v) const {
    const int row = at.row_of(mm, half);
    if (first + 4 <= Traits::TN / 8)
      return store_groups<false>(out, row, row < s.rows, at.column + 8 * first, s.columns, v.words,
                                 at.quad());
#pragma unroll
    for (int g = 0; first + g < Traits::TN / 8; ++g)
      store_pair(out, row, row < s.rows, at.column + at.offset_of<false>(first + g), s.columns, v.words[g]);
  }
};

// Stores f(mm, half, column, pair of what the product gave, f.at(group)) over all pairs of the tile.
template <class Traits, class Out, class F>
__device__ __forceinline__ void store_tile(float (&acc)[Traits::MM][Traits::TN / 2], const ProductShape& s,
                                           const TilePlace& at, const Affine& affine, Out* out, const F& f,
                                           float factor = 1) {
  using In = typename Traits::In;
  constexpr int MM = Traits::MM, kGroups = Traits::TN / 8;
  float scales[MM][2];
#pragma unroll
  for (int mm = 0; mm < MM; ++mm)
#pragma unroll
    for (int half = 0; half < 2; ++half) scales[mm][half] = prepared_row<Traits>(s, at, affine, mm, half);
  const std::conditional_t<Traits::kDealt, DealtRows<Traits, Out>, PairRows<Traits, Out>> rows(out, s, at);
#pragma unroll
  for (int first = 0; first < kGroups; first += 4) {
    FourGroups<Traits::kDealt, Out> four[MM][2];
    float2 last[MM][2];
#pragma unroll
    for (int g = 0; g < 4 && first + g < kGroups; ++g) {
      const int c = at.column + at.offset_of<Traits::kDealt>(first + g);
      const ColumnPair<Traits> column(at, first + g);
      const auto more = f.at(first + g);
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* v = &acc[mm][4 * (first + g) + 2 * half];
          four[mm][half].set(g, f(mm, half, c, column.of(v[0], v[1], scales[mm][half], factor), more),
                             last[mm][half]);
        }
    }
#pragma unroll
    for (int mm = 0; mm < MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half) rows.store(mm, half, first, four[mm][half]);
  }
}

// The product itself, whose columns were multiplied by a factor.
struct Plain {
  struct Nothing {};
  float back = 1;  // 1 / factor
  __device__ Nothing at(int) const { return {}; }
  __device__ float2 operator()(int, int, int, float2 v, Nothing) const {
    return make_float2(back * v.x, back * v.y);
  }
};

// ---- the tails ----

// A kernel that is Lean stores the result alone, and of a gate every tile is of one run: what others do would
// cost it registers.
template <class In, class Out, bool Lean>
struct StoreTailOf {
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
    if (!Lean && p.before) store_tile<Traits>(acc, s, at, p.affine, p.before, Plain{back}, factor);
    if (p.gelu)
      store_tile<Traits>(acc, s, at, p.affine, p.out, Gelu{FoldedGelu(back)}, factor);
    else
      store_tile<Traits>(acc, s, at, p.affine, p.out, Same(), factor);
  }
};

// The run of a row.
struct RunShape {
  int tokens, run_tokens, runs;  // runs of a sequence
  __device__ int of(int row) const { return row / tokens * runs + row % tokens / run_tokens; }
};
inline RunShape run_shape(const ProductSizes& sizes, const Runs& runs) {
  const int64_t length =
      runs.run_tokens > 0 && runs.run_tokens < sizes.tokens ? runs.run_tokens : sizes.tokens;
  return {static_cast<int>(sizes.tokens), static_cast<int>(length),
          static_cast<int>((sizes.tokens + length - 1) / length)};
}

template <class In, class Out, bool Lean>
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
    store_tile<Traits>(acc, s, at, p.affine, p.out, f, kFold<In>);
  }
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    if constexpr (Lean) return run<true, Traits>(acc, s, at, p);
    if (p.before) store_tile<Traits>(acc, s, at, p.affine, p.before, Plain{1 / kFold<In>}, kFold<In>);
    if (one_run(s, at, p, Traits::TM))
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
    Wide<In>* y;
  };
  __device__ static bool one_sequence(const ProductShape& s, const TilePlace& at, const Params& p, int TM) {
    return at.row / p.tokens == (min(at.row + TM, s.rows) - 1) / p.tokens;
  }
  template <class Traits>
  __device__ static void prepare(const ProductShape& s, const TilePlace& at, const Params& p) {
    const float* gate = p.gate + at.row / p.tokens * p.gate_stride;
    prepare_columns<Traits>(s, at, p.affine, one_sequence(s, at, p, Traits::TM) ? gate : nullptr);
    static_assert(Traits::TM == kWarpgroup);
    const int row = at.row + at.thread;  // the tile of x comes into the cache while we multiply
    if (row >= s.rows) return;
    for (int c = at.column; c < min(at.column + Traits::TN, s.columns); c += 32)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(p.x + static_cast<int64_t>(row) * s.columns + c));
  }
  // Groups of columns whose reads are under way together: as many as the registers allow.
  template <class Traits>
  static constexpr int kTogether = Traits::TN == 144   ? (kScaled<In> ? 3 : 6)
                                   : kScaled<In>       ? 4
                                   : Traits::TN == 128 ? 8
                                                       : Traits::TN / 8;

  // With One the whole tile is of one sequence.
  template <bool One, class Traits, class Acc>
  __device__ static void run(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    constexpr int MM = Traits::MM, kGroups = Traits::TN / 8, kSome = kTogether<Traits>;
    static_assert(kGroups % kSome == 0);
#pragma unroll
    for (int first = 0; first < kGroups; first += kSome)
#pragma unroll
      for (int mm = 0; mm < MM; ++mm) {
        float2 values[2][kSome];
#pragma unroll
        for (int half = 0; half < 2; ++half) read<Traits>(values[half], s, at, p, mm, half, first);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = min(at.row_of(mm, half), s.rows - 1);
          const float scale = prepared_row<Traits>(s, at, p.affine, mm, half);
#pragma unroll
          for (int g = 0; g < kSome; ++g) {
            const float* v = &acc[mm][4 * (first + g) + 2 * half];
            const int c = at.column + at.offset_of<Traits::kDealt>(first + g);
            const float2 y = ColumnPair<Traits>(at, first + g).of(v[0], v[1], scale);
            const float2 gate = One             ? prepared<Traits>(at, 2, first + g)
                                : c < s.columns ? pair_at(p.gate + row / p.tokens * p.gate_stride, c)
                                                : make_float2(0, 0);
            float2& x = values[half][g];
            x = make_float2(fmaf(gate.x, y.x, x.x), fmaf(gate.y, y.y, x.y));
          }
          write<Traits>(values[half], s, at, p, mm, half, first);
        }
      }
  }
  // A row's pairs of some groups: eight columns in a row where they are dealt out, else pairs apart.
  template <class Traits, int Count>
  __device__ static void read(float2 (&values)[Count], const ProductShape& s, const TilePlace& at,
                              const Params& p, int mm, int half, int first) {
    const int row = at.row_of(mm, half);
    const float* const x = p.x + static_cast<int64_t>(row) * s.columns;
#pragma unroll
    for (int g = 0; g < Count; g += Traits::kDealt ? 4 : 1) {
      const int c = at.column + at.offset_of<Traits::kDealt>(first + g);
      if (row >= s.rows || c >= s.columns) continue;
      if constexpr (Traits::kDealt) {
        const float4 low = *reinterpret_cast<const float4*>(x + c);
        const float4 high = *reinterpret_cast<const float4*>(x + c + 4);
        values[g] = make_float2(low.x, low.y), values[g + 1] = make_float2(low.z, low.w);
        values[g + 2] = make_float2(high.x, high.y), values[g + 3] = make_float2(high.z, high.w);
      } else {
        values[g] = *reinterpret_cast<const float2*>(x + c);
      }
    }
  }
  template <class Traits, int Count>
  __device__ static void write(const float2 (&values)[Count], const ProductShape& s, const TilePlace& at,
                               const Params& p, int mm, int half, int first) {
    const int row = at.row_of(mm, half);
    float* const x = p.x + static_cast<int64_t>(row) * s.columns;
#pragma unroll
    for (int g = 0; g < Count; g += Traits::kDealt ? 4 : 1) {
      const int c = at.column + at.offset_of<Traits::kDealt>(first + g);
      if (row >= s.rows || c >= s.columns) continue;
      if constexpr (Traits::kDealt) {
        *reinterpret_cast<float4*>(x + c) =
            make_float4(values[g].x, values[g].y, values[g + 1].x, values[g + 1].y);
        *reinterpret_cast<float4*>(x + c + 4) =
            make_float4(values[g + 2].x, values[g + 2].y, values[g + 3].x, values[g + 3].y);
      } else {
        *reinterpret_cast<float2*>(x + c) = values[g];
      }
    }
  }
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    if (p.y) store_tile<Traits>(acc, s, at, p.affine, p.y, Plain());
    if (one_sequence(s, at, p, Traits::TM))
      run<true, Traits>(acc, s, at, p);
    else
      run<false, Traits>(acc, s, at, p);
  }
};

// ---- the mixer's context ----

// See sums_row(): blocks of columns hold whole features, whose factors follow each other in a thread.
constexpr int sums_block(int order) {
  return order % 2 == 0 ? 4 * order : 8 * order;
}
__host__ __device__ constexpr int64_t sums_row_of(int64_t r, int order, int64_t D) {
  const int block = order % 2 == 0 ? 4 * order : 8 * order, features = order % 2 == 0 ? 4 : 8;
  const int inner = static_cast<int>(r % block), value = inner / 8 * 2 + inner % 2;
  const int64_t feature = r / block * features + inner % 8 / 2 * (features / 4) + value / order;
  return value % order * D + feature;
}

template <class In, int Order>
struct SumsTailOf {
  struct Params {
    Affine affine;
    RunShape runs;
    const uint8_t* visible;
    float* partial;
    Wide<In>* before;  // in the kernel's own order of columns
  };

  // Of order 2, which has most use, GELU leaves a factor of its result to the end.
  static constexpr bool kLater = Order == 2 && std::is_same_v<In, __nv_bfloat16>;
  static constexpr float kFactor = kLater ? 0.2f : kFold<In>, kOwed = kLater ? 2.5f : 1.0f;
  __device__ __forceinline__ static float factor(float y) {
    if constexpr (kLater)
      return fifth_gelu(y);
    else
      return folded_gelu<In>(y);
  }

  template <class Traits>
  __device__ static void prepare(const ProductShape& s, const TilePlace& at, const Params& p) {
    prepare_columns<Traits>(s, at, p.affine, nullptr, kFactor);
  }

  // The factors of each feature become their running products, in place.
  template <bool Before, class Traits, class Acc>
  __device__ static void products(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    constexpr int MM = Traits::MM, kGroups = Traits::TN / 8;
    float scales[MM][2];
#pragma unroll
    for (int mm = 0; mm < MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half) scales[mm][half] = prepared_row<Traits>(s, at, p.affine, mm, half);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int c = at.column + at.offset_of<false>(j);
      const ColumnPair<Traits> column(at, j);
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* v = &acc[mm][4 * j + 2 * half];
          const float2 y = column.of(v[0], v[1], scales[mm][half], kFactor);
          const int row = at.row_of(mm, half);
          if constexpr (Before)
            store_pair(p.before, row, row < s.rows, c, s.columns,
                       pack_pair<Wide<In>>(make_float2(y.x * (1 / kFactor), y.y * (1 / kFactor))));
          v[0] = kOwed * factor(y.x), v[1] = kOwed * factor(y.y);
          running_products<Traits>(acc, j, mm, half);
        }
    }
  }
  // Of the factors in group j, whose groups before have theirs.
  template <class Traits, class Acc>
  __device__ __forceinline__ static void running_products(Acc& acc, int j, int mm, int half) {
    float* const v = &acc[mm][4 * j + 2 * half];
    if ((2 * j) % Order != 0) v[0] *= acc[mm][4 * (j > 0 ? j - 1 : 0) + 2 * half + 1];
    if ((2 * j + 1) % Order != 0) v[1] *= v[0];
  }

  // The same of a tile whose rows all count, without keeping the products: the sums of a thread's rows take
  // the place of the first row's factors. Order 2 only.
  template <class Traits, class Acc>
  __device__ static void row_sums(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    constexpr int MM = Traits::MM, kGroups = Traits::TN / 8;
    float scales[MM][2];
#pragma unroll
    for (int mm = 0; mm < MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half) scales[mm][half] = prepared_row<Traits>(s, at, p.affine, mm, half);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const ColumnPair<Traits> column(at, j);
      float one = 0, two = 0;
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* v = &acc[mm][4 * j + 2 * half];
          const float2 y = column.of(v[0], v[1], scales[mm][half], kFactor);
          const float x = factor(y.x);
          one += x, two = fmaf(x, factor(y.y), two);
        }
      acc[0][4 * j] = one, acc[0][4 * j + 1] = two;
    }
  }

  // The same of factors that are in place.
  template <class Traits, class Acc>
  __device__ __forceinline__ static void add_rows(Acc& acc) {
#pragma unroll
    for (int j = 0; j < Traits::TN / 8; ++j) {
      float one = 0, two = 0;
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* v = &acc[mm][4 * j + 2 * half];
          one += v[0], two = fmaf(v[0], v[1], two);
        }
      acc[0][4 * j] = one, acc[0][4 * j + 1] = two;
    }
  }

  // Sums over the octets of a warp, halving what a thread holds in each round: of Count values of all threads
  // the sum of one stays with each, of value which(). The order of the terms is the same for every Count.
  template <int Count>
  __device__ static float sum_octets(float (&v)[Count], int lane) {
    static_assert(Count == 8 || Count == 4);
    constexpr int kFirst = Count / 2, kSecond = Count / 4;
    const bool upper = lane & 16, middle = lane & 8, lower = lane & 4;
#pragma unroll
    for (int i = 0; i < kFirst; ++i) {
      const float keep = upper ? v[i + kFirst] : v[i], send = upper ? v[i] : v[i + kFirst];
      v[i] = keep + __shfl_xor_sync(0xffffffffu, send, 16);
    }
#pragma unroll
    for (int i = 0; i < kSecond; ++i) {
      const float keep = middle ? v[i + kSecond] : v[i], send = middle ? v[i] : v[i + kSecond];
      v[i] = keep + __shfl_xor_sync(0xffffffffu, send, 8);
    }
    if constexpr (Count == 4) return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 4);
    const float keep = lower ? v[1] : v[0], send = lower ? v[0] : v[1];
    return keep + __shfl_xor_sync(0xffffffffu, send, 4);
  }
  template <int Count>
  __device__ static int which(int lane) {
    if constexpr (Count == 4) return (lane & 16) / 8 + (lane & 8) / 8;
    return (lane & 16) / 4 + (lane & 8) / 4 + (lane & 4) / 4;
  }

  // With Summed a thread's rows have been added up already.
  template <class Traits, int Count, int First, bool Summed, class Acc>
  __device__ static void sum_values(Acc& acc, const TilePlace& at, const bool (&counts)[Traits::MM][2]) {
    float totals[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      totals[i] = 0;
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (Summed ? mm + half == 0 : counts[mm][half])
            totals[i] += acc[mm][4 * ((First + i) / 2) + 2 * half + (First + i) % 2];
    }
    const int lane = at.thread % 32;
    const float total = sum_octets<Count>(totals, lane);
    const int value = First + which<Count>(lane);
    at.shared[at.warp() * Traits::TN + 8 * (value / 2) + 2 * at.quad() + value % 2] = total;
    constexpr int kNext = First + Count, kLeft = Traits::TN / 4 - kNext;
    if constexpr (kLeft >= 8)
      sum_values<Traits, 8, kNext, Summed>(acc, at, counts);
    else if constexpr (kLeft > 0)
      sum_values<Traits, 4, kNext, Summed>(acc, at, counts);
  }

  // Sums over the rows [first, end), of those that are visible, into a row of `partial`.
  template <bool All, class Traits, bool Summed = false, class Acc>
  __device__ static void sum(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p, int first,
                             int end, int slot) {
    constexpr int MM = Traits::MM, TN = Traits::TN;
    bool counts[MM][2];
#pragma unroll
    for (int mm = 0; mm < MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = at.row_of(mm, half);
        counts[mm][half] = All || (row >= first && row < end && (!p.visible || p.visible[row] != 0));
      }
    sum_values<Traits, 8, 0, Summed>(acc, at, counts);
    at.sync();
    const int64_t D = s.columns / Order;
    for (int c = at.thread; c < TN && at.column + c < s.columns; c += kWarpgroup) {
      const float total = at.shared[c] + at.shared[TN + c] + (at.shared[2 * TN + c] + at.shared[3 * TN + c]);
      p.partial[static_cast<int64_t>(slot) * s.columns + sums_row_of(at.column + c, Order, D)] =
          Summed ? total * (c % 2 == 0 ? kOwed : kOwed * kOwed) : total;
    }
    at.sync();
  }

  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    constexpr int TM = Traits::TM;
    const int last = min(at.row + TM, s.rows) - 1, tile = at.row / TM;
    const int from = p.runs.of(at.row), to = p.runs.of(last);
    const bool all = from == to && last == at.row + TM - 1 && !p.visible;
    if constexpr (Order == 2)
      if (all && !p.before) {
        row_sums<Traits>(acc, s, at, p);
        at.sync();  // the biases have been read
        return sum<true, Traits, true>(acc, s, at, p, 0, 0, tile + from);
      }
    if (p.before)
      products<true, Traits>(acc, s, at, p);
    else
      products<false, Traits>(acc, s, at, p);
    at.sync();
    if (all) return sum<true, Traits>(acc, s, at, p, 0, 0, tile + from);
    for (int run = from; run <= to; ++run) {
      const int start = run / p.runs.runs * p.runs.tokens + run % p.runs.runs * p.runs.run_tokens;
      const int end = min(start + p.runs.run_tokens, (run / p.runs.runs + 1) * p.runs.tokens);
      sum<false, Traits>(acc, s, at, p, start, end, tile + run);
    }
  }
};

}  // namespace pom::kernels
