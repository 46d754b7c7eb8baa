// The running sum of the causal masks, lanes being features. Blocks come in order; each gets the sum of all
// blocks up to it or, with a window of W blocks, of the last W. Nothing is ever subtracted: a window is the
// sum of the blocks since the last multiple of W and of the tail of the W blocks before that, so that no
// error builds up.
#pragma once

#include "pom/ops/cpu/vec.h"

namespace pom::ops::cpu {
namespace {

// State of one feature: rows of `stride` elements. Without a window: row 0 the sum of whole runs of kRun
// blocks, row 1 that of the run under way (two short sums lose less than one long one). With a window of W:
// row 0 the running sum, rows 1..W the blocks of this group of W, rows W+1..2W the sums of the tails of the
// group before.
template <class A>
struct Walker {
  A* state;
  std::int64_t stride, window;
  std::int64_t lanes;  // valid features
  static constexpr std::int64_t kRun = 64;

  V<A> row(std::int64_t r) const { return load_some(state + r * stride, lanes); }
  void set_row(std::int64_t r, V<A> v) const { store_some(state + r * stride, v, lanes); }

  // What block `b` (counted from the first one walked) sees, given its own sum; `first` starts an unbounded
  // sum.
  POM_INLINE V<A> add(std::int64_t b, V<A> sum, V<A> first) const {
    if (window == 0) {
      const std::int64_t r = b % kRun;
      const V<A> part = r == 0 ? sum : row(1) + sum, whole = b == 0 ? first : row(0), total = whole + part;
      if (b == 0 || r + 1 == kRun) set_row(0, r + 1 == kRun ? total : first);
      set_row(1, part);
      return total;
    }
    const std::int64_t r = b % window;
    const V<A> total = r == 0 ? sum : row(0) + sum;
    set_row(0, total);
    set_row(1 + r, sum);
    const V<A> seen = b >= window && r + 1 < window ? row(1 + window + r) + total : total;
    if (r + 1 == window) close_group();
    return seen;
  }

 private:
  void close_group() const {
    V<A> tail = {};
    for (std::int64_t j = window - 1; j > 0; --j) {
      tail = row(1 + j) + tail;
      set_row(window + j, tail);
    }
  }
};

// The tokens of one piece, `token[t]` a vector each, walked in place: in order or backwards. `blocks` is the
// number of blocks of the whole sequence. `factor[t]` (may be null) multiplies what a token sees. Gives what
// the last block sees.
template <class A>
POM_INLINE V<A> walk_tokens(const Walker<A>& walker, const ScanRule& rule, A* token, std::int64_t start,
                            int count, std::int64_t blocks, const A* factor, bool backwards, V<A> first) {
  constexpr int L = kLanes<A>;
  const std::int64_t b0 = start / rule.block, b1 = (start + count + rule.block - 1) / rule.block;
  V<A> seen = {};
  for (std::int64_t i = 0; i < b1 - b0; ++i) {
    const std::int64_t b = backwards ? b1 - 1 - i : b0 + i;
    const int t0 = static_cast<int>(b * rule.block - start);
    const int t1 = t0 + rule.block < count ? static_cast<int>(t0 + rule.block) : count;
    V<A> sum = {};
    for (int t = t0; t < t1; ++t) sum += load(token + t * L);
    seen = walker.add(backwards ? blocks - 1 - b : b, sum, first);
    for (int t = t0; t < t1; ++t) store(token + t * L, factor ? seen * splat(factor[t]) : seen);
  }
  return seen;
}

// Segments of whole sequences (large blocks): H[segment] is replaced by what the segment sees.
template <class A>
void walk_segments(const LayerArgs& a, const std::int64_t* begin, std::int64_t sequences, const double* scale,
                   A* H, A* state, bool backwards, std::int64_t f0, std::int64_t f1) {
  const std::int64_t kD = a.order * a.D;
  for (std::int64_t f = f0; f < f1; f += kLanes<A>) {
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int64_t blocks = begin[s + 1] - begin[s];
      const Walker<A> walker{state + f, kD, window_within(a.scan.window, blocks), f1 - f};
      for (std::int64_t i = 0; i < blocks; ++i) {
        const std::int64_t segment = begin[s] + (backwards ? blocks - 1 - i : i);
        A* h = H + segment * kD + f;
        const V<A> seen = walker.add(i, load_some(h, f1 - f), V<A>{});
        store_some(h, scale ? seen * splat(static_cast<A>(scale[segment])) : seen, f1 - f);
      }
    }
  }
}

// H[segment] = scale[segment] * (the partial sums of its subs, in order).
template <class A>
void fold_subs(const LayerArgs& a, const std::int64_t* sub_begin, std::int64_t segments, const double* scale,
               A* H, std::int64_t f0, std::int64_t f1) {
  const std::int64_t kD = a.order * a.D;
  const A* sums = static_cast<const A*>(a.sums);
  for (std::int64_t s = 0; s < segments; ++s)
    for (std::int64_t f = f0; f < f1; f += kLanes<A>) {
      V<A> total = {};
      for (std::int64_t i = sub_begin[s]; i < sub_begin[s + 1]; ++i)
        total += load_some(sums + i * kD + f, f1 - f);
      if (scale) total *= splat(static_cast<A>(scale[s]));
      store_some(H + s * kD + f, total, f1 - f);
    }
}

}  // namespace
}  // namespace pom::ops::cpu
