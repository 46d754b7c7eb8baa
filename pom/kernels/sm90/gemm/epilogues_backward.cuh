// What a warpgroup does with a finished tile of training's products: see gemm_backward.h. Columns are
// dealt out: of every 32 (a block) a thread holds eight in a row, so that it reads and writes 16 bytes at a
// time.
#pragma once

#include <algorithm>

#include "pom/kernels/common/context_order.h"
#include "pom/kernels/sm90/gemm/epilogue_parts.cuh"
#include "pom/kernels/sm90/gemm/epilogue_sums.cuh"
#include "pom/kernels/sm90/gemm/gemm_backward.h"

namespace pom::kernels {

template <class T>
__device__ __forceinline__ float2 unpack_pair(uint32_t word) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  else
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

// A thread's eight columns of a block, of one row.
__device__ __forceinline__ int first_column(const TilePlace& at, int block) {
  return at.column + 32 * block + 8 * at.quad();
}
template <class T>
__device__ __forceinline__ void store_eight(T* to, int64_t row, int column, int columns,
                                            const uint32_t (&w)[4]) {
  *reinterpret_cast<uint4*>(to + row * columns + column) = make_uint4(w[0], w[1], w[2], w[3]);
}

// ---- sums over the rows of a tile, in an order that does not depend on its width ----

// Eight values of every thread are added up over the octets of a warp; each thread ends with one of the sums,
// of value octet_value().
__device__ __forceinline__ float add_octets(float (&v)[8], int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float keep = lane & 16 ? v[i + 4] : v[i], send = lane & 16 ? v[i] : v[i + 4];
    v[i] = keep + __shfl_xor_sync(0xffffffffu, send, 16);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float keep = lane & 8 ? v[i + 2] : v[i], send = lane & 8 ? v[i] : v[i + 2];
    v[i] = keep + __shfl_xor_sync(0xffffffffu, send, 8);
  }
  const float keep = lane & 4 ? v[1] : v[0], send = lane & 4 ? v[0] : v[1];
  return keep + __shfl_xor_sync(0xffffffffu, send, 4);
}
__device__ __forceinline__ int octet_value(int lane) {
  return (lane & 16) / 4 + (lane & 8) / 4 + (lane & 4) / 4;
}

// The warps' sums of each block of columns meet in shared memory, which must be free, and go to a row of
// `out` (all columns of the product): column c of the tile to out[to(c)].
template <class Traits, class To>
__device__ __forceinline__ void add_warps(const float (&sums)[Traits::TN / 32], const GemmShape& s,
                                          const TilePlace& at, float* out, const To& to) {
  constexpr int TN = Traits::TN;
  const int place = at.warp() * TN + 8 * at.quad() + octet_value(at.thread % 32);
#pragma unroll
  for (int b = 0; b < TN / 32; ++b) at.shared[place + 32 * b] = sums[b];
  at.sync();
  for (int c = at.thread; c < TN && at.column + c < s.columns; c += kWarpgroup)
    out[to(c)] = at.shared[c] + at.shared[TN + c] + (at.shared[2 * TN + c] + at.shared[3 * TN + c]);
  at.sync();
}

// Adds up the accumulators over the rows [first, end) of the product.
template <bool All, class Traits, class Acc, class To>
__device__ __forceinline__ void add_rows(const Acc& acc, const GemmShape& s, const TilePlace& at, int first,
                                         int end, float* out, const To& to) {
  constexpr int MM = Traits::MM, kBlocks = Traits::TN / 32;
  bool counts[MM][2];
#pragma unroll
  for (int mm = 0; mm < MM; ++mm)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row_of(mm, half);
      counts[mm][half] = All || (row >= first && row < end);
    }
  float sums[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    float totals[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      totals[i] = 0;
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (counts[mm][half]) totals[i] += acc[mm][16 * b + 4 * (i / 2) + 2 * half + i % 2];
    }
    sums[b] = add_octets(totals, at.thread % 32);
  }
  add_warps<Traits>(sums, s, at, out, to);
}

// The same for each sequence that the tile has rows of, into slot tile + sequence of `partial`. The shared
// memory must be free.
template <class Traits, class Acc, class To>
__device__ __forceinline__ void add_sequences(const Acc& acc, const GemmShape& s, const TilePlace& at,
                                              int tokens, float* partial, const To& to) {
  const int last = min(at.row + Traits::TM, s.rows) - 1, tile = at.row / Traits::TM;
  const int from = at.row / tokens, until = last / tokens;
  const auto slot = [&](int sequence) { return partial + static_cast<int64_t>(tile + sequence) * s.columns; };
  if (from == until && last == at.row + Traits::TM - 1)
    return add_rows<true, Traits>(acc, s, at, 0, 0, slot(from), to);
  for (int sequence = from; sequence <= until; ++sequence)
    add_rows<false, Traits>(acc, s, at, sequence * tokens, (sequence + 1) * tokens, slot(sequence), to);
}

// ---- the context's forward ----

template <class In, int Order>
struct ContextEpilogueOf {
  static constexpr int kFactors = Order;  // the weights may stand in the paper's layout
  struct Params {
    const float* bias;
    int tokens;
    float* partial;
    In* ho;
  };

  template <class Traits>
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    const int D = s.columns / Order;
    for (int c = at.thread; c < Traits::TN; c += kWarpgroup) {
      const bool inside = p.bias && at.column + c < s.columns;
      at.shared[c] = inside ? __ldg(p.bias + context_row_of(at.column + c, Order, D)) : 0;
    }
  }

  // ho is stored, and the factors of each feature become their running products, in place. With Summed, for
  // which all rows have to be there and of one sequence, they are added up over the thread's rows and the
  // octets as it goes.
  template <bool Summed, class Traits, class Acc>
  __device__ static void gemms(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p,
                               float (&sums)[Traits::TN / 32]) {
    const int D = s.columns / Order;
#pragma unroll
    for (int b = 0; b < Traits::TN / 32; ++b) {
      const int column = b % Order * D + (at.column + 32 * (b - b % Order)) / Order + 8 * at.quad();
      float totals[8] = {};
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = at.row_of(mm, half);
          uint32_t words[4];
#pragma unroll
          for (int g = 0; g < 4; ++g) {
            float* v = &acc[mm][16 * b + 4 * g + 2 * half];
            const float2 bias = prepared<Traits>(at, 0, 4 * b + g);
            const float2 z = make_float2(v[0] + bias.x, v[1] + bias.y);
            words[g] = pack_pair<In>(z);
            v[0] = epilogue_gelu<In>(z.x), v[1] = epilogue_gelu<In>(z.y);
            const float* last = v - (b % Order != 0 ? 16 : 0);  // the factor before
            if (b % Order != 0)                                 // not fused with the sum: equal bits
              v[0] = __fmul_rn(v[0], last[0]), v[1] = __fmul_rn(v[1], last[1]);
            totals[2 * g] += v[0], totals[2 * g + 1] += v[1];
          }
          if ((Summed || row < s.rows) && at.column + 32 * b < s.columns)
            store_eight(p.ho, row, column, s.columns, words);
        }
      if constexpr (Summed) sums[b] = add_octets(totals, at.thread % 32);
    }
  }

  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    static_assert(Traits::kDealt && Traits::TN % (32 * Order) == 0);
    const int D = s.columns / Order, last = at.row + Traits::TM - 1, sequence = at.row / p.tokens;
    const auto to = [&](int c) { return context_row_of(at.column + c, Order, D); };
    float sums[Traits::TN / 32];
    if constexpr (Traits::TN <= 128)  // wider tiles would spill with code for both
      if (last < s.rows && last / p.tokens == sequence) {
        gemms<true, Traits>(acc, s, at, p, sums);
        at.sync();  // the biases have been read
        const int slot = at.row / Traits::TM + sequence;
        return add_warps<Traits>(sums, s, at, p.partial + static_cast<int64_t>(slot) * s.columns, to);
      }
    gemms<false, Traits>(acc, s, at, p, sums);
    at.sync();
    add_sequences<Traits>(acc, s, at, p.tokens, p.partial, to);
  }
};

// ---- the backward pass ----

// The tile of a stored tensor on its way to the second-level cache while the product is under way; not by the
// copy engine, which has its hands full.
template <class Traits, class T>
__device__ __forceinline__ void fetch_tile(const GemmShape& s, const TilePlace& at, const T* tensor) {
  static_assert(Traits::TM == kWarpgroup);  // a row each
  const int row = at.row + at.thread, columns = min(Traits::TN, s.columns - at.column);
  if (row >= s.rows) return;
  const T* from = tensor + static_cast<int64_t>(row) * s.columns + at.column;
  for (int c = 0; c < columns; c += 128 / static_cast<int>(sizeof(T)))
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + c));
}

// What becomes of one value: its gradient, to be stored and summed; the forward's value once more; and what
// else is to be summed.
struct Differentiated {
  float gradient, again, more;
};

// Takes the tile through f.at(block, row) -> g, g(i, accumulator, stored value) -> Differentiated for column
// i of eight. `gradients` and `again` (or null) are written. Sums of the gradients over the thread's rows of
// each block, and where the tile is whole of what else there is; else that takes the accumulators' place.
// Eights of `stored` are read some ahead: as many as the registers allow. Nothing of it all is read again
// soon, and should leave the cache to the matrices. Whole: with all rows and columns.
template <bool Whole, class Traits, class In, class Acc, class F>
__device__ __forceinline__ void differentiate(Acc& acc, const GemmShape& s, const TilePlace& at,
                                              const In* stored, In* gradients, In* again,
                                              float (&sums)[Traits::TN / 32],
                                              float (&more_sums)[Traits::TN / 32], const F& f) {
  constexpr int kBlocks = Traits::TN / 32, kRows = 2 * Traits::MM, kEights = kBlocks * kRows, kAhead = 4;
  static_assert(kEights >= kAhead);
  const int64_t start = static_cast<int64_t>(at.row_of(0, 0)) * s.columns + first_column(at, 0);
  stored += start, gradients += start;
  if (again) again += start;
  const auto inside = [&](int i) {
    return Whole || (at.row_of(i % kRows / 2, i % 2) < s.rows && first_column(at, i / kRows) < s.columns);
  };
  const auto place = [&](int i) {  // of eight i: those of a block's rows follow each other
    return (64 * (i % kRows / 2) + 8 * (i % 2)) * s.columns + 32 * (i / kRows);
  };
  uint4 ahead[kAhead];
  const auto read = [&](int i) {
    ahead[i % kAhead] = make_uint4(0, 0, 0, 0);
    if (inside(i)) ahead[i % kAhead] = __ldcs(reinterpret_cast<const uint4*>(stored + place(i)));
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) read(i);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    float totals[8] = {}, more[8] = {};
#pragma unroll
    for (int i = b * kRows; i < (b + 1) * kRows; ++i) {
      const uint4 w = ahead[i % kAhead];
      if (i + kAhead < kEights) read(i + kAhead);
      const int mm = i % kRows / 2, half = i % 2;
      const auto g = f.at(b, at.row_of(mm, half));
      const uint32_t in[4] = {w.x, w.y, w.z, w.w};
      uint32_t slopes[4], values[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float* v = &acc[mm][16 * b + 4 * j + 2 * half];
        const float2 x = unpack_pair<In>(in[j]);
        const Differentiated one = g(2 * j, v[0], x.x), two = g(2 * j + 1, v[1], x.y);
        slopes[j] = pack_pair<In>(make_float2(one.gradient, two.gradient));
        values[j] = pack_pair<In>(make_float2(one.again, two.again));
        totals[2 * j] += one.gradient, totals[2 * j + 1] += two.gradient;
        if constexpr (!F::kMore) continue;
        if constexpr (Whole)
          more[2 * j] += one.more, more[2 * j + 1] += two.more;
        else
          v[0] = one.more, v[1] = two.more;
      }
      if (inside(i))
        store_words<true>(gradients + place(i), make_uint4(slopes[0], slopes[1], slopes[2], slopes[3]));
      if (inside(i) && again)
        store_words<true>(again + place(i), make_uint4(values[0], values[1], values[2], values[3]));
    }
    sums[b] = add_octets(totals, at.thread % 32);
    if constexpr (Whole && F::kMore) more_sums[b] = add_octets(more, at.thread % 32);
  }
}
template <class Traits>
__device__ __forceinline__ bool whole(const GemmShape& s, const TilePlace& at) {
  return at.row + Traits::TM <= s.rows && at.column + Traits::TN <= s.columns;
}

template <class Traits>
__device__ __forceinline__ void add_tile(const float (&sums)[Traits::TN / 32], const GemmShape& s,
                                         const TilePlace& at, float* out) {
  if (!out) return;
  add_warps<Traits>(sums, s, at, out + static_cast<int64_t>(at.row / Traits::TM) * s.columns,
                    [&](int c) { return at.column + c; });
}

template <class In>
struct GateBackwardEpilogueOf {
  struct Params {
    int tokens;
    const In* se;
    const float* H;
    In *dse, *gated;
    float *dH, *dse_sums;
  };
  __device__ static bool one_sequence(const GemmShape& s, const TilePlace& at, const Params& p, int TM) {
    return at.row / p.tokens == (min(at.row + TM, s.rows) - 1) / p.tokens;
  }
  template <class Traits>
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    fetch_tile<Traits>(s, at, p.se);
    if (!one_sequence(s, at, p, Traits::TM)) return;
    const float* H = p.H + static_cast<int64_t>(at.row / p.tokens) * s.columns + at.column;
    for (int c = at.thread; c < Traits::TN; c += kWarpgroup)
      at.shared[c] = at.column + c < s.columns ? __ldg(H + c) : 0;
  }

  // H of eight columns, from the shared memory or, where the tile has rows of several sequences, its own.
  struct Row {
    alignas(16) float h[8];
    __device__ explicit Row(const float* from) {
      *reinterpret_cast<float4*>(h) = *reinterpret_cast<const float4*>(from);
      *reinterpret_cast<float4*>(h + 4) = *reinterpret_cast<const float4*>(from + 4);
    }
    __device__ Differentiated operator()(int i, float dgated, float x) const {
      const float s = sigmoid<In>(x), gated = s * h[i], flow = dgated * gated;
      return {fmaf(-flow, s, flow), gated,
              __fmul_rn(dgated, s)};  // added up without fusing: the same bits in every tile
    }
  };
  struct Shared {
    static constexpr bool kMore = true;
    const float* h;
    __device__ Row at(int block, int) const { return Row(h + 32 * block); }
  };
  struct Apart {
    static constexpr bool kMore = true;
    const float* H;
    int tokens, rows, columns, column;
    __device__ Row at(int block, int row) const {
      const int inside = min(column + 32 * block, columns - 8);  // what is beyond is not stored
      return Row(H + static_cast<int64_t>(min(row, rows - 1) / tokens) * columns + inside);
    }
  };

  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    static_assert(Traits::kDealt);
    float sums[Traits::TN / 32], dH[Traits::TN / 32];
    if (whole<Traits>(s, at) && one_sequence(s, at, p, Traits::TM)) {
      differentiate<true, Traits>(acc, s, at, p.se, p.dse, p.gated, sums, dH,
                                  Shared{at.shared + 8 * at.quad()});
      at.sync();  // H has been read
      const int slot = at.row / Traits::TM + at.row / p.tokens;
      add_warps<Traits>(dH, s, at, p.dH + static_cast<int64_t>(slot) * s.columns,
                        [&](int c) { return at.column + c; });
      return add_tile<Traits>(sums, s, at, p.dse_sums);
    }
    differentiate<false, Traits>(acc, s, at, p.se, p.dse, p.gated, sums, dH,
                                 Apart{p.H, p.tokens, s.rows, s.columns, first_column(at, 0)});
    at.sync();
    add_tile<Traits>(sums, s, at, p.dse_sums);
    add_sequences<Traits>(acc, s, at, p.tokens, p.dH, [&](int c) { return at.column + c; });
  }
};

template <class In>
struct GeluBackwardEpilogueOf {
  struct Params {
    const In* before;
    In *dbefore, *after;
    float* dbefore_sums;
  };
  template <class Traits>
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    fetch_tile<Traits>(s, at, p.before);
  }
  struct Slope {
    static constexpr bool kMore = false;
    __device__ Slope at(int, int) const { return {}; }
    __device__ Differentiated operator()(int, float dafter, float x) const {
      const Gelu g = short_gelu_and_slope<In>(x);
      return {__fmul_rn(dafter, g.slope), g.value, 0};  // not fused with the sum: equal bits
    }
  };
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    static_assert(Traits::kDealt);
    float sums[Traits::TN / 32], none[Traits::TN / 32];
    if (whole<Traits>(s, at))
      differentiate<true, Traits>(acc, s, at, p.before, p.dbefore, p.after, sums, none, Slope());
    else
      differentiate<false, Traits>(acc, s, at, p.before, p.dbefore, p.after, sums, none, Slope());
    add_tile<Traits>(sums, s, at, p.dbefore_sums);
  }
};

// ---- the host's half ----

// The best tile for the sizes, or the one asked for, of those at most `widest` wide that are whole multiples
// of `unit` columns: an index, -1 where there is none.
inline int tile_among(const Gemm& p, int widest, int unit) {
  const auto offered = [&](int i) {
    return gemm_tile(i).columns <= widest && gemm_tile(i).columns % unit == 0;
  };
  if (p.tile > 0) return p.tile <= gemm_tiles() && offered(p.tile - 1) ? p.tile - 1 : -1;
  int best = -1;
  double least = 0;
  for (int i = 0; i < gemm_tiles(); ++i) {
    if (!offered(i)) continue;
    const GemmTile t = gemm_tile(i);
    const int64_t tiles = (p.sizes.rows() + t.above * t.rows - 1) / (t.above * t.rows) *
                          ((p.sizes.outputs + t.beside * t.columns - 1) / (t.beside * t.columns));
    const int64_t slots = std::max(1, processors() / (t.above * t.beside));
    const double cost = static_cast<double>((tiles + slots - 1) / slots) * (t.columns + 24.0);
    if (best < 0 || cost < least) best = i, least = cost;
  }
  return best;
}

// Launches `Tail` in the tile of this index, out of those that tile_among() offers.
template <class In, class Epilogue, int Widest, int Unit>
cudaError_t launch_among(int index, const Gemm& p, const typename Epilogue::Params& params,
                         cudaStream_t stream) {
  return with_tile(index, [&]<int TN, int Beside>() {
    if constexpr (TN <= Widest && TN % Unit == 0)
      return launch_gemm<DealtTraits<In, TN, Beside>, Epilogue>(p, params, stream);
    else
      return cudaErrorInvalidValue;
  });
}

inline bool aligned_to_16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}
// What all of these products ask for.
inline bool training_gemm(const Gemm& p) {
  return gemm_supported(p) && (p.dtype == Dtype::bf16 || p.dtype == Dtype::fp16) && p.sizes.outputs % 32 == 0;
}

// Calls f.template operator()<In>() for a dtype of 16 bits.
template <class F>
cudaError_t with_half(Dtype dtype, const F& f) {
  return dtype == Dtype::bf16 ? f.template operator()<__nv_bfloat16>() : f.template operator()<__half>();
}

}  // namespace pom::kernels
