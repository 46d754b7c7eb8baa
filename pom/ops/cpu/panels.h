// Matrix products on packed panels. C[i][t] = sum_k A[i][k] B[k][t] where the lanes t of B are tokens (or
// features) packed in panels of kPanel lanes, and A is walked row by row as it lies in memory: a weight
// matrix is never packed, only the tokens are, once a tile. One thread computes whole products; the result
// stays in its cache.
//
// The words of A and B are what one multiply-add takes: a float, a double, or a pair of bf16 (two k at once).
#pragma once

#include "pom/ops/cpu/vec.h"

namespace pom::ops::cpu {
namespace {

template <class S>
struct Operand {
  using Store = S;
  using Acc = Arithmetic<S>;
  using Word = Arithmetic<S>;
  static constexpr int kPair = 1;
  static constexpr bool kDirect = std::is_same_v<S, Word>;
  static POM_INLINE V<Acc> multiply_add(V<Acc> acc, Word a, V<Word> b) { return fma<Acc>(splat(a), b, acc); }
  static POM_INLINE V<Word> words(V<Acc> even, V<Acc>) { return even; }
  // n elements of a row as words
  static POM_INLINE V<Word> row_words(const S* p, std::int64_t n) { return load_some(p, n); }
};

#if defined(__AVX512BF16__)
template <>
struct Operand<BF16> {
  using Store = BF16;
  using Acc = float;
  using Word = std::uint32_t;
  static constexpr int kPair = 2;
  static constexpr bool kDirect = true;
  static POM_INLINE V<float> multiply_add(V<float> acc, Word a, V<Word> b) {
    return bits<V<float>>(_mm512_dpbf16_ps(bits<__m512>(acc), bits<__m512bh>(splat(a)), bits<__m512bh>(b)));
  }
  static POM_INLINE V<Word> words(V<float> even, V<float> odd) {
    return (round_bf16(even) >> 16) | (round_bf16(odd) & 0xffff0000u);
  }
  static POM_INLINE V<Word> row_words(const BF16* p, std::int64_t n) {
    V<Word> v = {};
    if (n >= 2 * kLanes<Word>)
      std::memcpy(&v, p, sizeof(v));
    else if (n > 0) {
      BF16 part[2 * kLanes<Word>] = {};
      std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(BF16));
      std::memcpy(&v, part, sizeof(v));
    }
    return v;
  }
};
#endif

constexpr int kRows =
#if defined(__AVX512F__)
    12;  // 24 accumulators of 32 registers
#else
    6;  // 12 accumulators of 16 registers
#endif
template <class P>
constexpr int kPanel = 2 * kLanes<typename P::Acc>;

template <class P>
constexpr std::int64_t words_of(std::int64_t elements) {
  return (elements + P::kPair - 1) / P::kPair;
}

// The inner extent: `segments` runs of `k` words, each run at its own place in A and B.
struct Extent {
  std::int64_t segments = 1, k = 0, a_step = 0, b_step = 0;
};

// One register tile. Strip: A is packed [k][kRows]; otherwise row i starts at A + i * lda.
template <class P, int MR, int NV, bool Strip>
__attribute__((noinline)) void micro(const Extent& e, const typename P::Word* A, std::int64_t lda,
                                     const typename P::Word* B, typename P::Acc* C, std::int64_t ldc,
                                     bool add) {
  using Acc = typename P::Acc;
  constexpr int L = kLanes<Acc>;
  V<Acc> acc[MR][NV];
#pragma GCC unroll 12
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
      acc[i][v] = V<Acc>{};
      if (add) __builtin_prefetch(C + i * ldc + v * L, 1, 3);
    }
  for (std::int64_t s = 0; s < e.segments; ++s) {
    const typename P::Word* a = A + s * e.a_step;
    const typename P::Word* b = B + s * e.b_step;
    for (std::int64_t k = 0; k < e.k; ++k) {
      V<typename P::Word> lanes[NV];
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) std::memcpy(&lanes[v], b + k * kPanel<P> + v * L, sizeof(lanes[v]));
#pragma GCC unroll 12
      for (int i = 0; i < MR; ++i) {
        const typename P::Word word = Strip ? a[k * kRows + i] : a[i * lda + k];
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) acc[i][v] = P::multiply_add(acc[i][v], word, lanes[v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
      Acc* c = C + i * ldc + v * L;
      store(c, add ? load(c) + acc[i][v] : acc[i][v]);
    }
}

// Brings part `part` of `parts` of the next kRows rows of A near, while the present ones are multiplied.
template <class Word>
POM_INLINE void prefetch_rows(const Extent& e, const Word* next, std::int64_t lda, int part, int parts) {
  constexpr std::int64_t line = 64 / sizeof(Word);
  for (int r = kRows * part / parts; r < kRows * (part + 1) / parts; ++r)
    for (std::int64_t s = 0; s < e.segments; ++s)
      for (std::int64_t k = 0; k < e.k; k += line)
        __builtin_prefetch(next + r * lda + s * e.a_step + k, 0, 2);
}

// All panels of B against MR rows of A. `next` (may be null) is what will be multiplied after them.
template <class P, int MR, bool Strip>
POM_INLINE void row_of_tiles(const Extent& e, const typename P::Word* A, std::int64_t lda,
                             const typename P::Word* B, std::int64_t panel_step, int lanes,
                             typename P::Acc* C, std::int64_t ldc, bool add,
                             const typename P::Word* next = nullptr) {
  const int parts = (lanes + kPanel<P> - 1) / kPanel<P>;
  for (int t = 0; t < lanes; t += kPanel<P>, B += panel_step) {
    if (next) prefetch_rows(e, next, lda, t / kPanel<P>, parts);
    if (lanes - t > kPanel<P> / 2)
      micro<P, MR, 2, Strip>(e, A, lda, B, C + t, ldc, add);
    else
      micro<P, MR, 1, Strip>(e, A, lda, B, C + t, ldc, add);
  }
}

// C (+)= A B, A given as rows of words.
template <class P>
void multiply_rows(const Extent& e, const typename P::Word* A, std::int64_t lda, std::int64_t rows,
                   const typename P::Word* B, std::int64_t panel_step, int lanes, typename P::Acc* C,
                   std::int64_t ldc, bool add) {
  std::int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) {
    const typename P::Word* next = i + 2 * kRows <= rows ? A + (i + kRows) * lda : nullptr;
    row_of_tiles<P, kRows, false>(e, A + i * lda, lda, B, panel_step, lanes, C + i * ldc, ldc, add, next);
  }
  for (; i + 4 <= rows; i += 4)
    row_of_tiles<P, 4, false>(e, A + i * lda, lda, B, panel_step, lanes, C + i * ldc, ldc, add);
  for (; i < rows; ++i)
    row_of_tiles<P, 1, false>(e, A + i * lda, lda, B, panel_step, lanes, C + i * ldc, ldc, add);
}

// Rows of a weight matrix as they are stored: used in place where words can be read there, else copied (with
// the conversion to words) a strip at a time. `columns` in `segments` runs, `step` elements apart.
template <class P>
void multiply_weights(const typename P::Store* w, std::int64_t ld, std::int64_t rows, std::int64_t segments,
                      std::int64_t columns, std::int64_t step, const typename P::Word* B,
                      std::int64_t panel_step, int lanes, typename P::Acc* C, std::int64_t ldc, bool add,
                      typename P::Word* scratch) {
  using Word = typename P::Word;
  const std::int64_t k = words_of<P>(columns);
  Extent e{segments, k, 0, k * kPanel<P>};
  const bool aligned = reinterpret_cast<std::uintptr_t>(w) % sizeof(Word) == 0 && ld % P::kPair == 0 &&
                       columns % P::kPair == 0 && step % P::kPair == 0;
  const bool one_cache_set = ld * static_cast<std::int64_t>(sizeof(*w)) % 4096 == 0;
  if (P::kDirect && aligned && !one_cache_set) {
    e.a_step = step / P::kPair;
    multiply_rows<P>(e, reinterpret_cast<const Word*>(w), ld / P::kPair, rows, B, panel_step, lanes, C, ldc,
                     add);
    return;
  }
  constexpr int L = kLanes<Word>;
  const std::int64_t run = (k + L - 1) / L * L, lda = segments * run + L;
  e.a_step = run;
  for (std::int64_t i = 0; i < rows; i += kRows) {
    const std::int64_t some = rows - i < kRows ? rows - i : kRows;
    for (std::int64_t r = 0; r < some; ++r)
      for (std::int64_t s = 0; s < segments; ++s)
        for (std::int64_t j = 0; j < k; j += L) {
          const V<Word> v = P::row_words(w + (i + r) * ld + s * step + j * P::kPair, columns - j * P::kPair);
          std::memcpy(scratch + r * lda + s * run + j, &v, sizeof(v));
        }
    multiply_rows<P>(e, scratch, lda, some, B, panel_step, lanes, C + i * ldc, ldc, add);
  }
}
template <class P>
std::size_t weights_scratch(std::int64_t segments, std::int64_t columns) {
  constexpr int L = kLanes<typename P::Word>;
  return static_cast<std::size_t>(kRows * (segments * ((columns + L - 1) / L * L + L) + L));
}

constexpr int kStrips = 4;  // strips packed together, so that a row of the source is read in long runs

// The transpose of a weight matrix: C[i][t] (+)= sum_k w[k][i] B[k][t]. `inner` rows of w in `segments` runs,
// `step` rows apart; `rows` columns of w.
template <class P>
void multiply_transposed(const typename P::Store* w, std::int64_t ld, std::int64_t rows,
                         std::int64_t segments, std::int64_t inner, std::int64_t step,
                         const typename P::Word* B, std::int64_t panel_step, int lanes, typename P::Acc* C,
                         std::int64_t ldc, bool add, typename P::Word* scratch) {
  using Word = typename P::Word;
  constexpr int L = kLanes<Word>, kWide = (kStrips * kRows + L - 1) / L * L;
  const std::int64_t k = words_of<P>(inner), total = segments * k;
  const Extent e{1, total, 0, 0};
  for (std::int64_t i0 = 0; i0 < rows; i0 += kStrips * kRows) {
    const std::int64_t some = rows - i0 < kStrips * kRows ? rows - i0 : kStrips * kRows;
    for (std::int64_t s = 0; s < segments; ++s)
      for (std::int64_t j = 0; j < k; ++j) {
        const typename P::Store* even = w + (s * step + j * P::kPair) * ld + i0;
        const typename P::Store* odd = P::kPair == 2 && j * P::kPair + 1 < inner ? even + ld : nullptr;
        Word row[kWide];
        for (int v = 0; v < kWide; v += L) {
          const V<Word> x = P::words(load_some(even + v, some - v),
                                     odd ? load_some(odd + v, some - v) : V<typename P::Acc>{});
          std::memcpy(row + v, &x, sizeof(x));
        }
        for (int strip = 0; strip * kRows < some; ++strip)
          std::memcpy(scratch + (strip * total + s * k + j) * kRows, row + strip * kRows,
                      kRows * sizeof(Word));
      }
    for (int strip = 0; strip * kRows < some; ++strip)
      row_of_tiles<P, kRows, true>(e, scratch + strip * total * kRows, 0, B, panel_step, lanes,
                                   C + (i0 + strip * kRows) * ldc, ldc, add);
  }
}
template <class P>
std::size_t transposed_scratch(std::int64_t segments, std::int64_t inner) {
  return static_cast<std::size_t>(kStrips * kRows * segments * words_of<P>(inner));
}

// ---- packing ----

// Lanes are tokens: panels[p][k word][lane] of the rows `row[t]`, t < count; lanes beyond are zero.
template <class P>
void pack_tokens(const typename P::Store* const* row, int count, std::int64_t columns,
                 typename P::Word* panels) {
  using Word = typename P::Word;
  constexpr int L = kLanes<Word>;
  const std::int64_t k = words_of<P>(columns);
  for (int t0 = 0; t0 < count; t0 += L) {
    Word* panel = panels + (t0 / kPanel<P>)*k * kPanel<P> + t0 % kPanel<P>;
    for (std::int64_t j = 0; j < k; j += L) {
      V<Word> block[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i)
        block[i] =
            t0 + i < count ? P::row_words(row[t0 + i] + j * P::kPair, columns - j * P::kPair) : V<Word>{};
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i)
        if (j + i < k) std::memcpy(panel + (j + i) * kPanel<P>, &block[i], sizeof(block[i]));
    }
  }
  if (count % kPanel<P> != 0 && count % kPanel<P> <= L)  // the second half of the last panel
    for (std::int64_t j = 0; j < k; ++j)
      std::memset(panels + (count / kPanel<P>)*k * kPanel<P> + j * kPanel<P> + L, 0, L * sizeof(Word));
}

// Lanes are columns: panels[p][token word][lane]; the inner index runs over tokens.
template <class P>
void pack_columns(const typename P::Store* const* row, int count, std::int64_t columns,
                  typename P::Word* panels) {
  using Word = typename P::Word;
  constexpr int L = kLanes<Word>;
  const std::int64_t k = words_of<P>(count);
  for (std::int64_t t = 0; t < k; ++t) {
    const typename P::Store* even = row[t * P::kPair];
    const typename P::Store* odd =
        P::kPair == 2 && t * P::kPair + 1 < count ? row[t * P::kPair + 1] : nullptr;
    for (std::int64_t c = 0; c < (columns + kPanel<P> - 1) / kPanel<P> * kPanel<P>; c += L) {
      const V<Word> v = P::words(load_some(even + c, columns - c),
                                 odd ? load_some(odd + c, columns - c) : V<typename P::Acc>{});
      std::memcpy(panels + (c / kPanel<P>)*k * kPanel<P> + t * kPanel<P> + c % kPanel<P>, &v, sizeof(v));
    }
  }
}

// Blocks of C[c][t] + bias[c], turned to rows: put(t, c, value, columns that count).
template <class P, class Put>
POM_INLINE void unpack_values(const typename P::Acc* C, std::int64_t ldc, std::int64_t columns,
                              const typename P::Store* bias, int count, Put put) {
  using Acc = typename P::Acc;
  constexpr int L = kLanes<Acc>;
  for (std::int64_t c = 0; c < columns; c += L) {
    const V<Acc> b = bias ? load_some(bias + c, columns - c) : V<Acc>{};
    for (int t0 = 0; t0 < count; t0 += L) {
      V<Acc> block[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) block[i] = c + i < columns ? load(C + (c + i) * ldc + t0) : V<Acc>{};
      transpose(block);
      for (int i = 0; i < L && t0 + i < count; ++i) put(t0 + i, c, block[i] + b, columns - c);
    }
  }
}

// out[t][c] (Store) = C[c][t] + bias[c] for the tokens of a tile.
template <class P>
void unpack_tokens(const typename P::Acc* C, std::int64_t ldc, std::int64_t columns,
                   const typename P::Store* bias, typename P::Store* const* row, int count) {
  unpack_values<P>(C, ldc, columns, bias, count,
                   [&](int t, std::int64_t c, V<typename P::Acc> value, std::int64_t n) {
                     store_some(row[t] + c, value, n);
                   });
}

}  // namespace
}  // namespace pom::ops::cpu
