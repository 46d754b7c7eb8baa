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

__device__ __forceinline__ float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// x (1 + tanh(x p(x^2))) / 2, p fitted to the exact GELU within 2.6e-5.
// Times twice `half_factor`, which costs nothing.
__device__ __forceinline__ float tanh_gelu(float x, float half_factor = 0.5f) {
  const float t = fminf(x * x, 25.0f), half = half_factor * x;
  const float p = fmaf(t, fmaf(t, -3.51596e-4f, 3.7006017e-2f), 0.79750756f);
  return fmaf(half, fast_tanh(x * p), half);
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

// While the other warpgroup multiplies, what belongs to the tile's columns comes into shared memory: bias,
// weight scales, and a row of the tail's own (null: none), each TN floats.
template <class Traits>
__device__ __forceinline__ void prepare_columns(const ProductShape& s, const TilePlace& at, const Affine& f,
                                                const float* own) {
  constexpr int TN = Traits::TN;
  for (int c = at.thread; c < TN; c += kWarpgroup) {
    const int column = at.column + c;
    const bool inside = column < s.columns;
    at.shared[c] = inside && f.bias ? __ldg(f.bias + column) : 0;
    if constexpr (kScaled<typename Traits::In>) at.shared[TN + c] = inside ? __ldg(f.w_scale + column) : 1;
    if (own) at.shared[2 * TN + c] = inside ? own[column] : 0;
  }
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
  __device__ float2 of(float x, float y, float row_scale) const {
    if constexpr (kScaled<In>)
      return make_float2(fmaf(x, row_scale * scale.x, bias.x), fmaf(y, row_scale * scale.y, bias.y));
    else
      return make_float2(x + bias.x, y + bias.y);
  }
};
template <class In>
__device__ __forceinline__ float row_scale_of(const Affine& f, int row, bool inside) {
  if constexpr (kScaled<In>) return inside ? f.a_scale[f.scale_rows == 1 ? row : row / f.scale_rows] : 1.0f;
  return 1.0f;
}

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

// Stores f(mm, half, column, pair of what the product gave, f.at(group)) over all pairs of the tile.
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
    uint32_t words[MM][2][4];
#pragma unroll
    for (int g = 0; g < 4 && first + g < kGroups; ++g) {
      const int c = at.column + at.offset_of<Traits::kDealt>(first + g);
      const ColumnPair<Traits> column(at, first + g);
      const auto more = f.at(first + g);
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
          store_groups<Traits::kDealt>(out, row, row < s.rows, at.column + 8 * first, s.columns,
                                       words[mm][half], at.quad());
        } else {
#pragma unroll
          for (int g = 0; first + g < kGroups; ++g)
            store_pair(out, row, row < s.rows, at.column + at.offset_of<false>(first + g), s.columns,
                       words[mm][half][g]);
        }
      }
  }
}

// The product itself.
struct Plain {
  struct Nothing {};
  __device__ Nothing at(int) const { return {}; }
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
  template <class Traits>
  __device__ static void prepare(const ProductShape& s, const TilePlace& at, const Params& p) {
    prepare_columns<Traits>(s, at, p.affine, nullptr);
  }
  struct Activated : Plain {
    float inverse;
    bool with_gelu;
    __device__ float2 operator()(int, int, int, float2 v, Nothing) const {
      if constexpr (kScaled<Out>) {
        const float half = 0.5f * inverse;
        return with_gelu ? make_float2(tanh_gelu(v.x, half), tanh_gelu(v.y, half))
                         : make_float2(v.x * inverse, v.y * inverse);
      }
      return with_gelu ? make_float2(tail_gelu<In>(v.x), tail_gelu<In>(v.y)) : v;
    }
  };
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    if (p.before) store_tile<Traits>(acc, s, at, p.affine, p.before, Plain());
    Activated f;
    f.inverse = 1, f.with_gelu = p.gelu;
    if constexpr (kScaled<Out>) f.inverse = 1.0f / *p.out_scale;
    store_tile<Traits>(acc, s, at, p.affine, p.out, f);
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

template <class In, class Out>
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
    prepare_columns<Traits>(s, at, p.affine, !p.partial && one_run(s, at, p, Traits::TM) ? H : nullptr);
    if (!p.partial) return;
    const int sequence = at.row / p.runs.tokens, tiles = p.runs.tokens / kTileRows;
    const float* sums = p.partial + static_cast<int64_t>(sequence * tiles + sequence) * s.columns + at.column;
    for (int c = at.thread; c < Traits::TN && at.column + c < s.columns; c += kWarpgroup) {
      float total = 0;
#pragma unroll 4
      for (int t = 0; t < tiles; ++t) total += sums[static_cast<int64_t>(t) * s.columns + c];
      at.shared[2 * Traits::TN + c] = total / static_cast<float>(p.runs.tokens);
    }
  }
  // With One the whole tile is of one run.
  template <bool One, class Traits>
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
    __device__ float2 at(int j) const {
      if constexpr (!One) return make_float2(0, 0);
      const float2 h = prepared<Traits>(place, 2, j);
      return kScaled<Out> ? make_float2(h.x * inverse, h.y * inverse) : h;
    }
    __device__ float2 operator()(int mm, int half, int column, float2 v, float2 h) const {
      if constexpr (!One) {
        h = read(row(mm, half), column, column < columns);
        const float i = kScaled<Out> ? 1.0f / out_scale[row(mm, half) / runs.tokens] : 1.0f;
        h.x *= i, h.y *= i;
      }
      return make_float2(tail_gate<In>(v.x, h.x), tail_gate<In>(v.y, h.y));
    }
  };
  template <bool One, class Traits, class Acc>
  __device__ static void run(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    Gated<One, Traits> f{p.H, p.out_scale, p.runs, at, s.rows, s.columns, 1};
    if constexpr (kScaled<Out> && One) f.inverse = 1.0f / p.out_scale[at.row / p.runs.tokens];
    store_tile<Traits>(acc, s, at, p.affine, p.out, f);
  }
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    if (p.before) store_tile<Traits>(acc, s, at, p.affine, p.before, Plain());
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
          const float scale = row_scale_of<In>(p.affine, row, true);
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

  template <class Traits>
  __device__ static void prepare(const ProductShape& s, const TilePlace& at, const Params& p) {
    prepare_columns<Traits>(s, at, p.affine, nullptr);
  }

  // The factors of each feature become their running products, in place.
  template <bool Before, class Traits, class Acc>
  __device__ static void products(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    constexpr int MM = Traits::MM, kGroups = Traits::TN / 8;
    float scales[MM][2];
#pragma unroll
    for (int mm = 0; mm < MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        scales[mm][half] = row_scale_of<In>(p.affine, min(at.row_of(mm, half), s.rows - 1), true);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int c = at.column + at.offset_of<false>(j);
      const ColumnPair<Traits> column(at, j);
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* v = &acc[mm][4 * j + 2 * half];
          const float2 z = column.of(v[0], v[1], scales[mm][half]);
          const int row = at.row_of(mm, half);
          if constexpr (Before) store_pair(p.before, row, row < s.rows, c, s.columns, pack_pair<Wide<In>>(z));
          v[0] = tail_gelu<In>(z.x), v[1] = tail_gelu<In>(z.y);
          if ((2 * j) % Order != 0) v[0] *= acc[mm][4 * (j > 0 ? j - 1 : 0) + 2 * half + 1];
          if ((2 * j + 1) % Order != 0) v[1] *= v[0];
        }
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

  template <class Traits, int Count, int First, class Acc>
  __device__ static void sum_values(Acc& acc, const TilePlace& at, const bool (&counts)[Traits::MM][2]) {
    float totals[Count];
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      totals[i] = 0;
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (counts[mm][half]) totals[i] += acc[mm][4 * ((First + i) / 2) + 2 * half + (First + i) % 2];
    }
    const int lane = at.thread % 32;
    const float total = sum_octets<Count>(totals, lane);
    const int value = First + which<Count>(lane);
    at.shared[at.warp() * Traits::TN + 8 * (value / 2) + 2 * at.quad() + value % 2] = total;
    constexpr int kNext = First + Count, kLeft = Traits::TN / 4 - kNext;
    if constexpr (kLeft >= 8)
      sum_values<Traits, 8, kNext>(acc, at, counts);
    else if constexpr (kLeft > 0)
      sum_values<Traits, 4, kNext>(acc, at, counts);
  }

  // Sums over the rows [first, end), of those that are visible, into a row of `partial`.
  template <bool All, class Traits, class Acc>
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
    sum_values<Traits, 8, 0>(acc, at, counts);
    at.sync();
    const int64_t D = s.columns / Order;
    for (int c = at.thread; c < TN && at.column + c < s.columns; c += kWarpgroup) {
      const float total = at.shared[c] + at.shared[TN + c] + (at.shared[2 * TN + c] + at.shared[3 * TN + c]);
      p.partial[static_cast<int64_t>(slot) * s.columns + sums_row_of(at.column + c, Order, D)] = total;
    }
    at.sync();
  }

  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const ProductShape& s, const TilePlace& at, const Params& p) {
    constexpr int TM = Traits::TM;
    if (p.before)
      products<true, Traits>(acc, s, at, p);
    else
      products<false, Traits>(acc, s, at, p);
    at.sync();  // the biases have been read
    const int last = min(at.row + TM, s.rows) - 1, tile = at.row / TM;
    const int from = p.runs.of(at.row), to = p.runs.of(last);
    if (from == to && last == at.row + TM - 1 && !p.visible)
      return sum<true, Traits>(acc, s, at, p, 0, 0, tile + from);
    for (int run = from; run <= to; ++run) {
      const int start = run / p.runs.runs * p.runs.tokens + run % p.runs.runs * p.runs.run_tokens;
      const int end = min(start + p.runs.run_tokens, (run / p.runs.runs + 1) * p.runs.tokens);
      sum<false, Traits>(acc, s, at, p, start, end, tile + run);
    }
  }
};

}  // namespace pom::kernels
