// What a warpgroup does with a finished tile: see product.h. A thread holds pairs of neighbouring columns;
// four threads (a quad) hold eight columns of a row.
#pragma once

#include "pom/kernels/mixer_math.cuh"
#include "pom/kernels/product_kernel.cuh"

namespace pom::kernels {

template <class T>
constexpr bool kScaled = std::is_same_v<T, __nv_fp8_e4m3>;

// The affine half of a product: what the accumulators stand for.
struct Affine {
  const float *bias, *a_scale, *w_scale;
};
inline Affine affine_of(const Product& p) {
  return {p.bias, p.a_scale, p.w_scale};
}

__device__ __forceinline__ float2 pair_at(const float* p, int column) {
  return __ldg(reinterpret_cast<const float2*>(p + column));
}

// Bias and weight scale of a pair of columns.
template <class In>
struct ColumnPair {
  float2 bias, scale;
  __device__ ColumnPair(const Affine& f, int column, bool inside)
      : bias(f.bias && inside ? pair_at(f.bias, column) : make_float2(0, 0)),
        scale(kScaled<In> && inside ? pair_at(f.w_scale, column) : make_float2(1, 1)) {}
  __device__ float2 of(float x, float y, float row_scale) const {
    if constexpr (kScaled<In>)
      return make_float2(fmaf(x, row_scale * scale.x, bias.x), fmaf(y, row_scale * scale.y, bias.y));
    else
      return make_float2(x + bias.x, y + bias.y);
  }
};
template <class In>
__device__ __forceinline__ float row_scale_of(const Affine& f, int row, bool inside) {
  if constexpr (kScaled<In>) return inside ? __ldg(f.a_scale + row) : 1.0f;
  return 1.0f;
}

// ---- storing: two values of each of four groups of eight columns become a whole group in each thread ----

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
template <class Out>
__device__ __forceinline__ void store_groups(Out* out, int row, bool inside, int first_column, int columns,
                                             uint32_t (&w)[4], int quad) {
  transpose_quad(w, quad);
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

// The 16-bit type beside fp8, for what is kept in full.
template <class In>
using Wide = std::conditional_t<kScaled<In>, __nv_bfloat16, In>;

// Stores f(mm, half, column, pair of what the product gave, f.at(column)) over all pairs of the tile.
template <class Traits, class Out, class F>
__device__ __forceinline__ void store_tile(float (&acc)[Traits::MM][Traits::TN / 2], const ProductShape& s,
                                           const TilePlace& at, const Affine& affine, Out* out, const F& f) {
  using In = typename Traits::In;
  constexpr int MM = Traits::MM, kGroups = Traits::TN / 8;
  float scales[MM][2];
#pragma unroll
  for (int mm = 0; mm < MM; ++mm)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      scales[mm][half] = row_scale_of<In>(affine, min(at.row_of(mm, half), s.rows - 1), true);
#pragma unroll
  for (int first = 0; first < kGroups; first += 4) {
    if (at.column + 8 * first >= s.columns) return;
    uint32_t words[MM][2][4];
#pragma unroll
    for (int g = 0; g < 4 && first + g < kGroups; ++g) {
      const int c = at.column_of(first + g);
      const bool inside = c < s.columns;
      const ColumnPair<In> column(affine, c, inside);
      const auto more = f.at(c, inside);
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* v = &acc[mm][4 * (first + g) + 2 * half];
          words[mm][half][g] = pack_pair<Out>(f(mm, half, c, column.of(v[0], v[1], scales[mm][half]), more));
        }
    }
#pragma unroll
    for (int mm = 0; mm < MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = at.row_of(mm, half);
        if (first + 4 <= kGroups) {
          store_groups(out, row, row < s.rows, at.column + 8 * first, s.columns, words[mm][half], at.quad());
        } else {
#pragma unroll
          for (int g = 0; first + g < kGroups; ++g)
            store_pair(out, row, row < s.rows, at.column_of(first + g), s.columns, words[mm][half][g]);
        }
      }
  }
}

// The product itself.
struct Plain {
  struct Nothing {};
  __device__ Nothing at(int, bool) const { return {}; }
  __device__ float2 operator()(int, int, int, float2 v, Nothing) const { return v; }
};

// ---- the tails ----

template <class In, class Out>
struct StoreTailOf {
  struct Params {
    Affine affine;
    Out* out;
    Wide<In>* before;
    const float* out_scale;
    bool gelu;
  };
  struct Activated : Plain {
    float inverse;
    bool with_gelu;
    __device__ float2 operator()(int, int, int, float2 v, Nothing) const {
      if (with_gelu) v = make_float2(gelu<Wide<In>>(v.x), gelu<Wide<In>>(v.y));
      if constexpr (kScaled<Out>) v.x *= inverse, v.y *= inverse;
      return v;
    }
  };
  template <class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    using Traits = ProductTraits<In, 64 * sizeof(Acc) / sizeof(acc[0]), 2 * sizeof(acc[0]) / sizeof(float)>;
    if (p.before) store_tile<Traits>(acc, s, at, p.affine, p.before, Plain());
    Activated f;
    f.inverse = 1, f.with_gelu = p.gelu;
    if constexpr (kScaled<Out>) f.inverse = 1.0f / __ldg(p.out_scale);
    store_tile<Traits>(acc, s, at, p.affine, p.out, f);
  }
};

// The run of a row.
struct RunShape {
  int tokens, run_tokens, runs;  // runs of a sequence
  __device__ int of(int row) const { return row / tokens * runs + row % tokens / run_tokens; }
};
inline RunShape run_shape(const ProductSizes& sizes, const Runs& runs) {
  const int64_t length = runs.run_tokens > 0 && runs.run_tokens < sizes.tokens ? runs.run_tokens : sizes.tokens;
  return {static_cast<int>(sizes.tokens), static_cast<int>(length),
          static_cast<int>((sizes.tokens + length - 1) / length)};
}

__device__ __forceinline__ float sigmoid_of(float x) {
  return fast_reciprocal(1.0f + fast_exp2(-1.44269504f * x));
}

template <class In, class Out>
struct GateTailOf {
  struct Params {
    Affine affine;
    RunShape runs;
    const float* H;
    Out* out;
    Wide<In>* before;
    const float* out_scale;
  };
  // With One the whole tile is of one run.
  template <bool One>
  struct Gated {
    const float *H, *out_scale;
    RunShape runs;
    TilePlace place;
    int rows, columns;
    float inverse;

    __device__ int row(int mm, int half) const { return min(place.row_of(mm, half), rows - 1); }
    __device__ float2 read(int row, int column, bool inside) const {
      if (!inside) return make_float2(0, 0);
      return pair_at(H + static_cast<int64_t>(runs.of(row)) * columns, column);
    }
    __device__ float2 at(int column, bool inside) const {
      return One ? read(place.row, column, inside) : make_float2(0, 0);
    }
    __device__ float2 operator()(int mm, int half, int column, float2 v, float2 h) const {
      if constexpr (!One) h = read(row(mm, half), column, column < columns);
      v = make_float2(sigmoid_of(v.x) * h.x, sigmoid_of(v.y) * h.y);
      if constexpr (kScaled<Out>) {
        const float i = One ? inverse : 1.0f / __ldg(out_scale + row(mm, half) / runs.tokens);
        v.x *= i, v.y *= i;
      }
      return v;
    }
  };
  template <bool One, class Traits, class Acc>
  __device__ static void run(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    Gated<One> f{p.H, p.out_scale, p.runs, at, s.rows, s.columns, 1};
    if constexpr (kScaled<Out> && One) f.inverse = 1.0f / __ldg(p.out_scale + at.row / p.runs.tokens);
    store_tile<Traits>(acc, s, at, p.affine, p.out, f);
  }
  template <class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    using Traits = ProductTraits<In, 64 * sizeof(Acc) / sizeof(acc[0]), 2 * sizeof(acc[0]) / sizeof(float)>;
    if (p.before) store_tile<Traits>(acc, s, at, p.affine, p.before, Plain());
    const int last = min(at.row + Traits::TM, s.rows) - 1;
    if (p.runs.of(at.row) == p.runs.of(last))
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
  // With One the whole tile is of one sequence.
  template <bool One, class Acc>
  __device__ static void run(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    constexpr int MM = sizeof(Acc) / sizeof(acc[0]), kGroups = sizeof(acc[0]) / sizeof(float) / 4;
    float* const x = p.x + static_cast<int64_t>(at.row_of(0, 0)) * s.columns;
    const auto inside = [&](int mm, int half) { return at.row_of(mm, half) < s.rows; };
    const auto gate_of = [&](int row) { return p.gate + min(row, s.rows - 1) / p.tokens * p.gate_stride; };
    const float* const gate = gate_of(at.row);
    float scales[MM][2];
#pragma unroll
    for (int mm = 0; mm < MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        scales[mm][half] = row_scale_of<In>(p.affine, min(at.row_of(mm, half), s.rows - 1), true);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int c = at.column_of(j);
      if (c >= s.columns) return;
      const ColumnPair<In> column(p.affine, c, true);
      const float2 together = One ? pair_at(gate, c) : make_float2(0, 0);
      float2 old[MM][2];
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (inside(mm, half))
            old[mm][half] = *reinterpret_cast<const float2*>(x + (64 * mm + 8 * half) * s.columns + c);
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (!inside(mm, half)) continue;
          const float* v = &acc[mm][4 * j + 2 * half];
          const float2 y = column.of(v[0], v[1], scales[mm][half]);
          const float2 g = One ? together : pair_at(gate_of(at.row_of(mm, half)), c);
          *reinterpret_cast<float2*>(x + (64 * mm + 8 * half) * s.columns + c) =
              make_float2(fmaf(g.x, y.x, old[mm][half].x), fmaf(g.y, y.y, old[mm][half].y));
        }
    }
  }
  template <class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    using Traits = ProductTraits<In, 64 * sizeof(Acc) / sizeof(acc[0]), 2 * sizeof(acc[0]) / sizeof(float)>;
    if (p.y) store_tile<Traits>(acc, s, at, p.affine, p.y, Plain());
    if (at.row / p.tokens == (min(at.row + Traits::TM, s.rows) - 1) / p.tokens)
      run<true>(acc, s, at, p);
    else
      run<false>(acc, s, at, p);
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
    int tile_rows;
  };

  // The factors of each feature become their running products, in place.
  template <bool Before, class Acc>
  __device__ static void products(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    constexpr int MM = sizeof(Acc) / sizeof(acc[0]), kGroups = sizeof(acc[0]) / sizeof(float) / 4;
    float scales[MM][2];
#pragma unroll
    for (int mm = 0; mm < MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        scales[mm][half] = row_scale_of<In>(p.affine, min(at.row_of(mm, half), s.rows - 1), true);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int c = at.column_of(j);
      const ColumnPair<In> column(p.affine, c, c < s.columns);
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* v = &acc[mm][4 * j + 2 * half];
          const float2 z = column.of(v[0], v[1], scales[mm][half]);
          const int row = at.row_of(mm, half);
          if constexpr (Before) store_pair(p.before, row, row < s.rows, c, s.columns, pack_pair<Wide<In>>(z));
          v[0] = gelu<Wide<In>>(z.x), v[1] = gelu<Wide<In>>(z.y);
          if ((2 * j) % Order != 0) v[0] *= acc[mm][4 * (j > 0 ? j - 1 : 0) + 2 * half + 1];
          if ((2 * j + 1) % Order != 0) v[1] *= v[0];
        }
    }
  }

  // Sums over the rows [first, end), of those that are visible, into a row of `partial`.
  template <bool All, class Acc>
  __device__ static void sum(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p, int first,
                             int end, int slot) {
    constexpr int MM = sizeof(Acc) / sizeof(acc[0]), TN = 2 * sizeof(acc[0]) / sizeof(float);
    bool counts[MM][2];
#pragma unroll
    for (int mm = 0; mm < MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = at.row_of(mm, half);
        counts[mm][half] = All || (row >= first && row < end && (!p.visible || p.visible[row] != 0));
      }
#pragma unroll
    for (int value = 0; value < TN / 4; ++value) {
      float total = 0;
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (counts[mm][half]) total += acc[mm][4 * (value / 2) + 2 * half + value % 2];
#pragma unroll
      for (int offset = 16; offset >= 4; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
      if (at.octet() == 0) at.shared[at.warp() * TN + 8 * (value / 2) + 2 * at.quad() + value % 2] = total;
    }
    at.sync();
    const int64_t D = s.columns / Order;
    for (int c = at.thread; c < TN && at.column + c < s.columns; c += kWarpgroup) {
      const float total = at.shared[c] + at.shared[TN + c] + (at.shared[2 * TN + c] + at.shared[3 * TN + c]);
      p.partial[static_cast<int64_t>(slot) * s.columns + sums_row_of(at.column + c, Order, D)] = total;
    }
    at.sync();
  }

  template <class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    constexpr int TM = 64 * sizeof(Acc) / sizeof(acc[0]);
    if (p.before)
      products<true>(acc, s, at, p);
    else
      products<false>(acc, s, at, p);
    const int last = min(at.row + TM, s.rows) - 1, tile = at.row / TM;
    const int from = p.runs.of(at.row), to = p.runs.of(last);
    if (from == to && last == at.row + TM - 1 && !p.visible) return sum<true>(acc, s, at, p, 0, 0, tile + from);
    for (int run = from; run <= to; ++run) {
      const int start = run / p.runs.runs * p.runs.tokens + run % p.runs.runs * p.runs.run_tokens;
      const int end = min(start + p.runs.run_tokens, (run / p.runs.runs + 1) * p.runs.tokens);
      sum<false>(acc, s, at, p, start, end, tile + run);
    }
  }
};

}  // namespace pom::kernels
