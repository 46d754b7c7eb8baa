// Rows of the residual stream into panels and back: what comes before a product (a layer norm with
// modulation, a SiLU) is done while tokens are packed, what comes after it (bias, gate, the sum with the
// stream) while they are unpacked. The stream is in arithmetic type whatever the products are in; every row
// is computed alone, so that neither tiles nor neighbours change a bit.
#pragma once

#include "pom/ops/cpu/math.h"
#include "pom/ops/cpu/panels.h"

namespace pom::ops::cpu {
namespace {

template <class A>
POM_INLINE A sum_lanes(V<A> v) {
  A total = 0;
  for (int i = 0; i < kLanes<A>; ++i) total += v[i];
  return total;
}

// The first n lanes of v, zero in the others.
template <class A>
POM_INLINE V<A> first_lanes(V<A> v, std::int64_t n) {
  if (n >= kLanes<A>) return v;
  for (int i = 0; i < kLanes<A>; ++i) v[i] = i < n ? v[i] : A(0);
  return v;
}

// out = layer_norm(row) * (1 + scale) + shift
template <class A>
void normalise_row(const A* row, const A* scale, const A* shift, std::int64_t columns, A eps, A* out) {
  constexpr int L = kLanes<A>;
  V<A> sum = {}, squares = {};
  for (std::int64_t c = 0; c < columns; c += L) sum += load_some(row + c, columns - c);
  const V<A> mean = splat(sum_lanes<A>(sum) / static_cast<A>(columns));
  for (std::int64_t c = 0; c < columns; c += L) {
    const V<A> off = first_lanes<A>(load_some(row + c, columns - c) - mean, columns - c);
    squares = fma<A>(off, off, squares);
  }
  const V<A> inverse = splat(A(1) / std::sqrt(sum_lanes<A>(squares) / static_cast<A>(columns) + eps));
  for (std::int64_t c = 0; c < columns; c += L) {
    const std::int64_t n = columns - c;
    const V<A> x = load_some(row + c, n), factor = splat(A(1)) + load_some(scale + c, n);
    store_some(out + c, fma<A>((x - mean) * inverse, factor, load_some(shift + c, n)), n);
  }
}

template <class A>
void silu_row(const A* row, std::int64_t columns, A* out) {
  for (std::int64_t c = 0; c < columns; c += kLanes<A>) {
    const V<A> x = load_some(row + c, columns - c);
    store_some(out + c, x * sigmoid<A>(x), columns - c);
  }
}

// panels[p][k word][lane] of `some` rows, up to a vector's lanes, at token t0 of the tile.
template <class P>
void pack_rows(const typename P::Acc* const* row, int t0, int some, std::int64_t columns,
               typename P::Word* panels) {
  using Acc = typename P::Acc;
  constexpr int L = kLanes<Acc>;
  typename P::Word* panel = panels + (t0 / kPanel<P>)*words_of<P>(columns) * kPanel<P> + t0 % kPanel<P>;
  for (std::int64_t c = 0; c < columns; c += L) {
    V<Acc> block[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) block[i] = i < some ? load_some(row[i] + c, columns - c) : V<Acc>{};
    transpose(block);
#pragma GCC unroll 16
    for (int i = 0; i < L; i += P::kPair) {
      if (c + i >= columns) continue;
      const V<typename P::Word> word = P::words(block[i], block[(i + P::kPair - 1) % L]);
      std::memcpy(panel + (c + i) / P::kPair * kPanel<P>, &word, sizeof(word));
    }
  }
}

// The rows of a tile through `prepare(t, out)`, a vector's lanes of them at a time in `scratch` (see
// prepared_scratch), to panels.
template <class P, class Prepare>
void pack_prepared(int count, std::int64_t columns, typename P::Acc* scratch, typename P::Word* panels,
                   Prepare prepare) {
  using Acc = typename P::Acc;
  constexpr int L = kLanes<Acc>;
  const std::int64_t stride = (columns + L - 1) / L * L + L;
  for (int t0 = 0; t0 < count; t0 += L) {
    const int some = count - t0 < L ? count - t0 : L;
    const Acc* row[L];
    for (int i = 0; i < some; ++i) {
      prepare(t0 + i, scratch + i * stride);
      row[i] = scratch + i * stride;
    }
    pack_rows<P>(row, t0, some, columns, panels);
  }
}
template <class P>
std::size_t prepared_scratch(std::int64_t columns) {
  constexpr int L = kLanes<typename P::Acc>;
  return static_cast<std::size_t>(L * ((columns + L - 1) / L * L + L));
}

template <class P>
void pack_normalised(const typename P::Acc* const* row, const typename P::Acc* const* scale,
                     const typename P::Acc* const* shift, int count, std::int64_t columns, double eps,
                     typename P::Acc* scratch, typename P::Word* panels) {
  using Acc = typename P::Acc;
  pack_prepared<P>(count, columns, scratch, panels, [&](int t, Acc* out) {
    normalise_row<Acc>(row[t], scale[t], shift[t], columns, static_cast<Acc>(eps), out);
  });
}

template <class P>
void pack_silu(const typename P::Acc* const* row, int count, std::int64_t columns, typename P::Acc* scratch,
               typename P::Word* panels) {
  using Acc = typename P::Acc;
  pack_prepared<P>(count, columns, scratch, panels,
                   [&](int t, Acc* out) { silu_row<Acc>(row[t], columns, out); });
}

template <class P>
void pack_plain(const typename P::Acc* const* row, int count, std::int64_t columns,
                typename P::Word* panels) {
  constexpr int L = kLanes<typename P::Acc>;
  for (int t0 = 0; t0 < count; t0 += L)
    pack_rows<P>(row + t0, t0, count - t0 < L ? count - t0 : L, columns, panels);
}

// row[t][c] += gate[t][c] * (C[c][t] + bias[c])
template <class P>
void unpack_residual(const typename P::Acc* C, std::int64_t ldc, std::int64_t columns,
                     const typename P::Store* bias, typename P::Acc* const* row,
                     const typename P::Acc* const* gate, int count) {
  using Acc = typename P::Acc;
  unpack_values<P>(C, ldc, columns, bias, count, [&](int t, std::int64_t c, V<Acc> value, std::int64_t n) {
    store_some(row[t] + c, fma<Acc>(load_some(gate[t] + c, n), value, load_some(row[t] + c, n)), n);
  });
}

}  // namespace
}  // namespace pom::ops::cpu
