// The epilogue of the mixer's context: GELU, products along the degrees, and sums over tokens, of which
// nothing but the sums is stored. See gemm.h.
#pragma once

#include "pom/kernels/sm90/gemm/epilogue_parts.cuh"

namespace pom::kernels {

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
struct SumsEpilogueOf {
  struct Params {
    Affine affine;
    RunShape runs;
    const uint8_t* visible;
    float* partial;
  };

  // Whose weights may stand in the paper's layout.
  static constexpr int kFactors = Order == 2 && !kScaled<In> ? 2 : 0;
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
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    if (kFactors == 0 || s.factors == 0) return prepare_columns<Traits>(s, at, p.affine, nullptr, kFactor);
    const int D = s.columns / Order;  // the bias too is in the paper's layout
    for (int c = at.thread; c < Traits::TN; c += kWarpgroup) {
      const bool inside = p.affine.bias && at.column + c < s.columns;
      at.shared[c] = inside ? kFactor * __ldg(p.affine.bias + sums_row_of(at.column + c, Order, D)) : 0;
    }
  }

  // The factors of each feature become their running products, in place.
  template <class Traits, class Acc>
  __device__ static void gemms(Acc& acc, const GemmShape& s, const TilePlace& at, const Affine& affine) {
    constexpr int MM = Traits::MM, kGroups = Traits::TN / 8;
    float scales[MM][2];
    prepared_rows<Traits>(scales, s, at, affine);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const ColumnPair<Traits> column(at, j);
#pragma unroll
      for (int mm = 0; mm < MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* v = &acc[mm][4 * j + 2 * half];
          const float2 y = column.of(v[0], v[1], scales[mm][half], kFactor);
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
  __device__ static void row_sums(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    constexpr int MM = Traits::MM, kGroups = Traits::TN / 8;
    float scales[MM][2];
    prepared_rows<Traits>(scales, s, at, p.affine);
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
  __device__ static void sum(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p, int first,
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
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    constexpr int TM = Traits::TM;
    const int last = min(at.row + TM, s.rows) - 1, tile = at.row / TM;
    const int from = p.runs.of(at.row), to = p.runs.of(last);
    const bool all = from == to && last == at.row + TM - 1 && !p.visible;
    if constexpr (Order == 2)
      if (all) {
        row_sums<Traits>(acc, s, at, p);
        at.sync();  // the biases have been read
        return sum<true, Traits, true>(acc, s, at, p, 0, 0, tile + from);
      }
    gemms<Traits>(acc, s, at, p.affine);
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
