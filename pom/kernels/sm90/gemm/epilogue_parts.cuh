// What the epilogues (epilogue_store.cuh, …_gate, …_residual, …_sums) are made of: activations, bias and
// scales, and storing a tile. A thread holds pairs of neighbouring columns; four threads (a quad) hold eight
// columns of a row.
#pragma once

#include "pom/kernels/common/activations.cuh"
#include "pom/kernels/sm90/gemm/gemm_kernel.cuh"

namespace pom::kernels {

template <class T>
constexpr bool kScaled = std::is_same_v<T, __nv_fp8_e4m3>;

// The 16-bit type beside fp8, for what is kept in full.
template <class In>
using Wide = std::conditional_t<kScaled<In>, __nv_bfloat16, In>;

// ---- activations: in a epilogue every instruction counts. Beside bf16 and fp8 they use the hardware's tanh,
// which is off by up to 2^-11: of a sigmoid at most 2.5e-4 and of a GELU 2.5e-4 |x|, an eighth of a bf16
// rounding of what an open gate lets through. Beside fp16 that would show. ----

// x (1 + tanh(x p(x^2))) / 2, within 2.6e-5 of the exact GELU but for the tanh.
__device__ __forceinline__ float tanh_gelu(float x) {
  const float half = 0.5f * x;
  return fmaf(half, normal_tanh(x), half);
}
// What the columns of a epilogue are multiplied by before its activation; fp16 takes the value itself.
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
__device__ __forceinline__ float epilogue_gelu(float x) {
  if constexpr (std::is_same_v<In, __half>) return gelu<__half>(x);
  return tanh_gelu(x);
}
// sigmoid(x) h
template <class In>
__device__ __forceinline__ float epilogue_gate(float x, float h) {
  if constexpr (std::is_same_v<In, __half>) return fast_reciprocal(1.0f + fast_exp2(-1.44269504f * x)) * h;
  return fmaf(0.5f * h, fast_tanh(0.5f * x), 0.5f * h);
}

// The affine half of a product: what the accumulators stand for.
struct Affine {
  const float *bias, *a_scale, *w_scale;
  int scale_rows;  // of a scale of a
};
inline Affine affine_of(const Gemm& p) {
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
// weight scales, and a row of the epilogue's own (null: none), each TN floats. What the product gives will be
// multiplied by `factor`, where there are no scales by ColumnPair::of; the epilogue's own is by `own_factor`.
template <class Traits>
__device__ __forceinline__ void prepare_columns(const GemmShape& s, const TilePlace& at, const Affine& f,
                                                const float* own, float factor = 1, float own_factor = 1) {
  constexpr int TN = Traits::TN;
  for (int c = at.thread; c < TN; c += kWarpgroup) {
    const int column = at.column + c;
    const bool inside = column < s.columns;
    at.shared[c] = inside && f.bias && at.biased ? factor * __ldg(f.bias + column) : 0;
    if constexpr (kScaled<typename Traits::In>)
      at.shared[TN + c] = inside ? factor * __ldg(f.w_scale + column) : 1;
    if (own) at.shared[2 * TN + c] = inside ? own_factor * own[column] : 0;
  }
  if constexpr (kRowsPrepared<Traits>)
    at.shared[3 * TN + at.thread] =
        row_scale_of<typename Traits::In>(f, min(at.row + at.thread, s.rows - 1), true);
}
template <class Traits>
__device__ __forceinline__ float prepared_row(const GemmShape& s, const TilePlace& at, const Affine& f,
                                              int mm, int half) {
  if constexpr (kRowsPrepared<Traits>)
    return at.shared[3 * Traits::TN + at.row_of(mm, half) - at.row];
  else
    return row_scale_of<typename Traits::In>(f, min(at.row_of(mm, half), s.rows - 1), true);
}
template <class Traits>
__device__ __forceinline__ void prepared_rows(float (&scales)[Traits::MM][2], const GemmShape& s,
                                              const TilePlace& at, const Affine& f) {
#pragma unroll
  for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
    for (int half = 0; half < 2; ++half) scales[mm][half] = prepared_row<Traits>(s, at, f, mm, half);
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

// What is Passing is not read again before much else was written: it should be the first to leave the cache.
// In training's products the matrices then stay there (4 to 11 % of a product that stores two results).
template <bool Passing>
__device__ __forceinline__ void store_words(void* to, const uint4& words) {
  if constexpr (Passing)
    __stcs(static_cast<uint4*>(to), words);
  else
    *static_cast<uint4*>(to) = words;
}

// Where a thread stores rows of dealt columns, Passing where they have 16 bits: addresses are worked out
// once, not for every word.
template <class Traits, class Out, bool Passing>
struct DealtRows {
  Out* to;
  int eight;  // rows further down
  bool inside[Traits::MM][2];
  int columns;  // from the thread's first on
  __device__ __forceinline__ DealtRows(Out* out, const GemmShape& s, const TilePlace& at)
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
        store_words<Passing>(here, make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]));
    } else {
      if (inside[mm][half] && columns > 8 * first)
        *reinterpret_cast<uint2*>(here) = make_uint2(v.words[0], v.words[1]);
    }
  }
};
template <class Traits, class Out>
struct PairRows {
  Out* out;
  const GemmShape& s;
  const TilePlace& at;
  __device__ __forceinline__ PairRows(Out* out, const GemmShape& s, const TilePlace& at)
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
template <class Traits, bool Passing = false, class Out, class F>
__device__ __forceinline__ void store_tile(float (&acc)[Traits::MM][Traits::TN / 2], const GemmShape& s,
                                           const TilePlace& at, const Affine& affine, Out* out, const F& f,
                                           float factor = 1) {
  using In = typename Traits::In;
  constexpr int MM = Traits::MM, kGroups = Traits::TN / 8;
  float scales[MM][2];
  prepared_rows<Traits>(scales, s, at, affine);
  const std::conditional_t<Traits::kDealt, DealtRows<Traits, Out, Passing>, PairRows<Traits, Out>> rows(
      out, s, at);
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

// The run of a row.
struct RunShape {
  int tokens, run_tokens, runs;  // runs of a sequence
  __device__ int of(int row) const { return row / tokens * runs + row % tokens / run_tokens; }
  __device__ int end_of(int row) const {  // the first row behind the run of this one
    const int sequence = row / tokens * tokens, within = row - sequence;
    return sequence + min(within - within % run_tokens + run_tokens, tokens);
  }
};
inline RunShape run_shape(const GemmSizes& sizes, const Runs& runs) {
  const int64_t length =
      runs.run_tokens > 0 && runs.run_tokens < sizes.tokens ? runs.run_tokens : sizes.tokens;
  return {static_cast<int>(sizes.tokens), static_cast<int>(length),
          static_cast<int>((sizes.tokens + length - 1) / length)};
}

// What a kernel stores beside the result. It does nothing else, because that would cost registers.
enum class Keeps {
  nothing,
  before,  // what was before the activation
  any,     // before where it is asked for
};

}  // namespace pom::kernels
