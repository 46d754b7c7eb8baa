// The epilogues of the causal mixer: see scan.h. Rows of a thread are octet + 8 half + 16 warp + 64 mm of
// its tile: sums go over the octets of a warp by shuffles, then over its halves, then over the warps through
// shared memory.
#pragma once

#include "pom/kernels/sm90/gemm/epilogue_gate.cuh"
#include "pom/kernels/sm90/gemm/epilogue_sums.cuh"
#include "pom/kernels/sm90/scan/scan.h"

namespace pom::kernels {

template <class In>
constexpr float kPrefixScale = std::is_same_v<In, __half> ? 0.0625f : 1.0f;

template <class In, int Order>
struct ScanEpilogueOf {
  struct Params {
    Affine affine;
    int tokens;
    In* prefix;
    float* totals;
  };
  using Sums = SumsEpilogueOf<In, Order>;

  template <class Traits>
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    prepare_columns<Traits>(s, at, p.affine, nullptr, Sums::kFactor);  // as its products() expects
  }

  // The first rows of the sequences of a thread's rows. With One the whole tile is of one sequence, which
  // counts as begun before it.
  template <bool One>
  struct Starts {
    int of[2];
    __device__ Starts(const TilePlace& at, const Params& p, int mm) {
#pragma unroll
      for (int half = 0; half < 2; ++half) of[half] = One ? 0 : at.row_of(mm, half) / p.tokens * p.tokens;
    }
    __device__ bool before(int half, int row) const {
      return One || of[half] < row;
    }
  };

  // Sums over the 16 rows of a warp.
  template <bool One, class Traits>
  __device__ static void scan_warp(float (&acc)[Traits::TN / 2], const TilePlace& at,
                                   const Starts<One>& starts, int mm) {
    bool adds[2][3];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 3; ++i)
        adds[half][i] = at.octet() >= 1 << i && starts.before(half, at.row_of(mm, half) - (1 << i) + 1);
    const bool joined = starts.before(1, at.row_of(mm, 1) - at.octet());
#pragma unroll
    for (int v = 0; v < Traits::TN / 4; ++v) {
      float* const values[2] = {&acc[v / 2 * 4 + v % 2], &acc[v / 2 * 4 + 2 + v % 2]};
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          const float other = __shfl_up_sync(0xffffffffu, *values[half], 4 << i);
          if (adds[half][i]) *values[half] += other;
        }
      const float last = __shfl_sync(0xffffffffu, *values[0], 28 + at.quad());
      if (joined) *values[1] += last;
    }
  }

  // What the warps before have, from shared memory: row 0 the 64 rows before, 1 to 3 warps 0 to 2.
  template <bool One, class Traits>
  __device__ static void add_before(float (&acc)[Traits::TN / 2], const TilePlace& at,
                                    const Starts<One>& starts, int mm) {
    bool adds[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int u = 0; u < 4; ++u)
        adds[half][u] =
            (u == 0 ? mm > 0 : u - 1 < at.warp()) && starts.before(half, at.row + 64 * mm + 16 * u);
#pragma unroll
    for (int j = 0; j < Traits::TN / 8; ++j) {
      float2 sums[2] = {};
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const float2 other =
            *reinterpret_cast<const float2*>(at.shared + u * Traits::TN + at.offset_of<false>(j));
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (adds[half][u]) sums[half].x += other.x, sums[half].y += other.y;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
        acc[4 * j + 2 * half] += sums[half].x, acc[4 * j + 2 * half + 1] += sums[half].y;
    }
  }

  // A thread's last row into a row of shared memory.
  template <class Traits>
  __device__ static void leave(const float (&acc)[Traits::TN / 2], const TilePlace& at, int row) {
#pragma unroll
    for (int j = 0; j < Traits::TN / 8; ++j)
      *reinterpret_cast<float2*>(at.shared + row * Traits::TN + at.offset_of<false>(j)) =
          make_float2(acc[4 * j + 2], acc[4 * j + 3]);
  }

  template <bool One, class Traits, class Acc>
  __device__ static void scan(Acc& acc, const TilePlace& at, const Params& p) {
    static_assert(Traits::MM == 2);
#pragma unroll
    for (int mm = 0; mm < 2; ++mm) {
      const Starts<One> starts(at, p, mm);
      scan_warp<One, Traits>(acc[mm], at, starts, mm);
      if (at.warp() < 3 && at.octet() == 7) leave<Traits>(acc[mm], at, 1 + at.warp());
      at.sync();
      add_before<One, Traits>(acc[mm], at, starts, mm);
      at.sync();
      if (mm == 0 && at.warp() == 3 && at.octet() == 7) leave<Traits>(acc[mm], at, 0);
    }
  }

  // ---- storing, in the paper's order of columns ----

  static __device__ float scaled(float x) {
    return x * kPrefixScale<In>;
  }

  // A pair of columns by itself.
  template <class Traits>
  __device__ static void store_pair_apart(const float (&acc)[Traits::TN / 2], const GemmShape& s,
                                          const TilePlace& at, const Params& p, int mm, int j) {
    const int column = at.column + at.offset_of<false>(j), D = s.columns / Order;
    if (column >= s.columns) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t to = sums_row_of(column + e, Order, D);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = at.row_of(mm, half);
        const uint32_t word = pack_pair<In>(make_float2(scaled(acc[4 * j + 2 * half + e]), 0));
        if (row < s.rows)
          reinterpret_cast<uint16_t*>(p.prefix)[static_cast<int64_t>(row) * s.columns + to] =
              static_cast<uint16_t>(word);
      }
    }
  }
  // Order 2: a pair is the two factors of a feature, a quad has four features. Four groups change hands, so
  // that a thread has the four of one, and stores them factor by factor.
  template <class Traits>
  __device__ static void store_four(const float (&acc)[Traits::TN / 2], const GemmShape& s,
                                    const TilePlace& at, const Params& p, int mm, int first) {
    const int feature = (at.column + 8 * (first + at.quad())) / 2, D = s.columns / 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t w[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const float* v = &acc[4 * (first + g) + 2 * half];
        w[g] = pack_pair<In>(make_float2(scaled(v[0]), scaled(v[1])));
      }
      transpose_quad(w, at.quad());
      const int row = at.row_of(mm, half);
      if (row >= s.rows || feature >= D) continue;
      In* const to = p.prefix + static_cast<int64_t>(row) * s.columns + feature;
      *reinterpret_cast<uint2*>(to) =
          make_uint2(__byte_perm(w[0], w[1], 0x5410), __byte_perm(w[2], w[3], 0x5410));
      *reinterpret_cast<uint2*>(to + D) =
          make_uint2(__byte_perm(w[0], w[1], 0x7632), __byte_perm(w[2], w[3], 0x7632));
    }
  }
  // Of a sequence's last row in the tile.
  template <class Traits>
  __device__ static void store_totals(const float (&acc)[Traits::TN / 2], const GemmShape& s,
                                      const TilePlace& at, const Params& p, int mm, int half) {
    const int row = at.row_of(mm, half), next = row + 1, D = s.columns / Order;
    const bool last = next == min(at.row + Traits::TM, s.rows) || next % p.tokens == 0;
    if (row >= s.rows || !last) return;
    float* const to = p.totals + static_cast<int64_t>(at.row / Traits::TM + row / p.tokens) * s.columns;
#pragma unroll
    for (int v = 0; v < Traits::TN / 4; ++v) {
      const int column = at.column + at.offset_of<false>(v / 2) + v % 2;
      if (column < s.columns) to[sums_row_of(column, Order, D)] = acc[v / 2 * 4 + 2 * half + v % 2];
    }
  }

  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    constexpr int kGroups = Traits::TN / 8;
    Sums::template gemms<Traits>(acc, s, at, p.affine);
    at.sync();  // the biases have been read
    if (at.row / p.tokens == (min(at.row + Traits::TM, s.rows) - 1) / p.tokens)
      scan<true, Traits>(acc, at, p);
    else
      scan<false, Traits>(acc, at, p);
#pragma unroll
    for (int mm = 0; mm < 2; ++mm) {
#pragma unroll
      for (int half = 0; half < 2; ++half) store_totals<Traits>(acc[mm], s, at, p, mm, half);
      constexpr int kFours = Order == 2 ? kGroups / 4 * 4 : 0;
#pragma unroll
      for (int first = 0; first < kFours; first += 4) store_four<Traits>(acc[mm], s, at, p, mm, first);
#pragma unroll
      for (int j = kFours; j < kGroups; ++j) store_pair_apart<Traits>(acc[mm], s, at, p, mm, j);
    }
  }
};

template <class In>
struct ScanGateEpilogueOf {
  struct Params {
    Affine affine;
    int tokens, block;
    const In* prefix;
    const float* carry;
    const int64_t* count;
    In* out;

    // The last row that a row sees, and where the sum before its tile is.
    __device__ int seen(int row) const {
      const int token = row % tokens;
      return row - token + min((token / block + 1) * block, tokens) - 1;
    }
    __device__ int slot(int last) const { return last / kTileRows + last / tokens; }
  };

  // Whether all rows of the tile go on from the same sum.
  __device__ static bool one_slot(const GemmShape& s, const TilePlace& at, const Params& p) {
    return p.slot(p.seen(at.row)) == p.slot(p.seen(min(at.row + kTileRows, s.rows) - 1));
  }
  template <class Traits>
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    const float* carry = p.carry + static_cast<int64_t>(p.slot(p.seen(at.row))) * s.columns;
    prepare_columns<Traits>(s, at, p.affine, one_slot(s, at, p) ? carry : nullptr);
    const int row = at.row + at.thread;  // the sums come into the cache while we multiply
    if (row >= s.rows) return;
    const In* const sums = p.prefix + static_cast<int64_t>(p.seen(row)) * s.columns;
    for (int c = at.column; c < min(at.column + Traits::TN, s.columns); c += 64)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(sums + c));
  }

  // Of each of a thread's rows the row it sees last, and one over the number that the mean is of.
  template <class Traits>
  struct Seen {
    int last[Traits::MM][2];
    float inverse[Traits::MM][2];
    __device__ Seen(const GemmShape& s, const TilePlace& at, const Params& p) {
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = min(at.row_of(mm, half), s.rows - 1), sequence = row / p.tokens;
          last[mm][half] = p.seen(row);
          const float before = p.count ? static_cast<float>(p.count[sequence]) : 0.0f;
          inverse[mm][half] =
              1.0f / (1e-7f + before + static_cast<float>(last[mm][half] - sequence * p.tokens + 1));
        }
    }
  };

  // Groups whose sums are read together: of a dealt tile they are eight columns in a row.
  template <class Traits>
  static constexpr int kTogether = Traits::kDealt ? 4 : 3;

  template <class Traits>
  struct Sums {
    uint32_t words[Traits::MM][2][kTogether<Traits>];
    __device__ void read(const GemmShape& s, const TilePlace& at, const Params& p, const Seen<Traits>& seen,
                         int first) {
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const In* const from = p.prefix + static_cast<int64_t>(seen.last[mm][half]) * s.columns;
          uint32_t(&w)[kTogether<Traits>] = words[mm][half];
          const int column = at.column + at.offset_of<Traits::kDealt>(first);
          if constexpr (Traits::kDealt) {
            uint4 eight = make_uint4(0, 0, 0, 0);
            if (column < s.columns) eight = *reinterpret_cast<const uint4*>(from + column);
            w[0] = eight.x, w[1] = eight.y, w[2] = eight.z, w[3] = eight.w;
          } else {
#pragma unroll
            for (int g = 0; g < kTogether<Traits>; ++g)
              w[g] =
                  column + 8 * g < s.columns ? *reinterpret_cast<const uint32_t*>(from + column + 8 * g) : 0;
          }
        }
    }
  };
  __device__ static float2 unpacked(uint32_t word) {
    if constexpr (std::is_same_v<In, __half>) {
      const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&word));
      return make_float2(v.x * (1.0f / kPrefixScale<In>), v.y * (1.0f / kPrefixScale<In>));
    } else {
      return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
    }
  }

  template <bool One, class Traits, class Acc>
  __device__ static void run(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    constexpr int MM = Traits::MM, kGroups = Traits::TN / 8, kSome = kTogether<Traits>;
    static_assert(kGroups % kSome == 0);
    const Seen<Traits> seen(s, at, p);
    Sums<Traits> now, next;
    now.read(s, at, p, seen, 0);
#pragma unroll
    for (int first = 0; first < kGroups; first += kSome) {
      if (first + kSome < kGroups) next.read(s, at, p, seen, first + kSome);
      uint32_t words[MM][2][kSome];
#pragma unroll
      for (int g = 0; g < kSome; ++g) {
        const int c = at.column + at.offset_of<Traits::kDealt>(first + g);
        const ColumnPair<Traits> column(at, first + g);
        float2 carry = One ? prepared<Traits>(at, 2, first + g) : make_float2(0, 0);
#pragma unroll
        for (int mm = 0; mm < MM; ++mm)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (!One && c < s.columns)
              carry = pair_at(p.carry + static_cast<int64_t>(p.slot(seen.last[mm][half])) * s.columns, c);
            const float* v = &acc[mm][4 * (first + g) + 2 * half];
            const float2 y = column.of(v[0], v[1], 1.0f), sum = unpacked(now.words[mm][half][g]);
            const float inverse = seen.inverse[mm][half];
            words[mm][half][g] =
                pack_pair<In>(make_float2(epilogue_gate<In>(y.x, (carry.x + sum.x) * inverse),
                                          epilogue_gate<In>(y.y, (carry.y + sum.y) * inverse)));
          }
      }
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = at.row_of(mm, half);
          if constexpr (Traits::kDealt) {
            store_groups<true>(p.out, row, row < s.rows, at.column + 8 * first, s.columns, words[mm][half],
                               at.quad());
          } else {
#pragma unroll
            for (int g = 0; g < kSome; ++g)
              store_pair(p.out, row, row < s.rows, at.column + at.offset_of<false>(first + g), s.columns,
                         words[mm][half][g]);
          }
        }
      now = next;
    }
  }
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    if (one_slot(s, at, p))
      run<true, Traits>(acc, s, at, p);
    else
      run<false, Traits>(acc, s, at, p);
  }
};

}  // namespace pom::kernels
