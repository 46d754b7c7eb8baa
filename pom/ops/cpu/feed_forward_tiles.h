// The two products of feed_forward.h on one tile of rows, and the four of the backward pass. Scratch, lanes
// being rows: panels of x (or dy), z[group][T], panels of the group, out[columns][T].
#pragma once

#include "pom/ops/cpu/feed_forward.h"
#include "pom/ops/cpu/math.h"
#include "pom/ops/cpu/panels.h"

namespace pom::ops::cpu {
namespace {

template <class P>
class FeedForwardTile {
  using Store = typename P::Store;
  using Acc = typename P::Acc;
  using Word = typename P::Word;
  static constexpr int L = kLanes<Acc>;

 public:
  FeedForwardTile(const FeedForwardArgs& args, void* scratch)
      : a_(args), T_(args.tile), base_(static_cast<char*>(scratch)) {
    const std::int64_t wide = larger(a_.in, a_.out), rows = a_.group + kRows;
    take(x_, T_ * words_of<P>(wide));
    take(z_, rows * T_);
    take(panels_, T_ * words_of<P>(a_.group));
    take(out_, up(wide, kStrips * kRows) * T_);
    take(weights_, larger(weights_scratch<P>(1, a_.in), weights_scratch<P>(1, a_.group)));
    take(strips_, larger(transposed_scratch<P>(1, a_.out), transposed_scratch<P>(1, a_.group)));
    take(row_, T_);
    if (!a_.dy) return;
    take(slopes_, rows * T_);
    take(values_, rows * T_);
    take(columns_x_, words_of<P>(T_) * up(a_.in, kPanel<P>));
    take(columns_dy_, words_of<P>(T_) * up(a_.out, kPanel<P>));
  }
  std::size_t scratch_bytes() const { return used_; }

  void forward(std::int64_t tile) {
    open(tile);
    pack_tokens<P>(rows_of(a_.x, a_.in), count_, a_.in, x_);
    for (std::int64_t g = 0; g < a_.groups(); ++g) {
      set_group(g);
      multiply_weights<P>(static_cast<const Store*>(a_.w1.data) + f0_ * a_.w1.ld, a_.w1.ld, F_, 1, a_.in, 0,
                          x_, words_of<P>(a_.in) * kPanel<P>, count_, z_, T_, false, weights_);
      to_panels([&](std::int64_t f, int t) { return activate(f, t); });
      multiply_weights<P>(static_cast<const Store*>(a_.w2.data) + f0_, a_.w2.ld, a_.out, 1, F_, 0, panels_,
                          words_of<P>(F_) * kPanel<P>, count_, out_, T_, g != 0, weights_);
    }
    unpack_tokens<P>(out_, T_, a_.out, static_cast<const Store*>(a_.b2), rows_of(a_.y, a_.out), count_);
  }

  void backward(std::int64_t tile) {
    open(tile);
    pack_tokens<P>(rows_of(a_.dy, a_.out), count_, a_.out, x_);
    pack_columns<P>(rows_of(a_.dy, a_.out), count_, a_.out, columns_dy_);
    pack_columns<P>(rows_of(a_.x, a_.in), count_, a_.in, columns_x_);
    for (std::int64_t g = 0; g < a_.groups(); ++g) {
      set_group(g);
      multiply_transposed<P>(static_cast<const Store*>(a_.w2.data) + f0_, a_.w2.ld, F_, 1, a_.out, 0, x_,
                             words_of<P>(a_.out) * kPanel<P>, count_, z_, T_, false, strips_);
      to_panels([&](std::int64_t f, int t) { return slope(f, t); });
      if (a_.dx)
        multiply_transposed<P>(static_cast<const Store*>(a_.w1.data) + f0_ * a_.w1.ld, a_.w1.ld, a_.in, 1, F_,
                               0, panels_, words_of<P>(F_) * kPanel<P>, count_, out_, T_, g != 0, strips_);
      wait_for(g, tile);
      add_weights(g, tile == 0, tile + 1 == a_.tiles());
      a_.done[g].fetch_add(1, std::memory_order_release);
    }
    if (a_.dx) unpack_tokens<P>(out_, T_, a_.in, nullptr, rows_of(a_.dx, a_.in), count_);
  }

 private:
  template <class N>
  static N larger(N a, N b) {
    return a > b ? a : b;
  }
  static std::int64_t up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

  template <class X>
  void take(X*& pointer, std::size_t count) {
    pointer = base_ ? reinterpret_cast<X*>(base_ + used_) : nullptr;
    used_ += (count * sizeof(X) + 127) / 64 * 64;
  }

  void open(std::int64_t tile) {
    first_ = tile * T_;
    count_ = static_cast<int>(a_.rows - first_ < T_ ? a_.rows - first_ : T_);
    lanes_ = static_cast<int>(up(count_, L));
  }
  void set_group(std::int64_t g) {
    f0_ = g * a_.group;
    F_ = a_.hidden - f0_ < a_.group ? a_.hidden - f0_ : a_.group;
  }
  Store** rows_of(const void* data, std::int64_t columns) {
    for (int t = 0; t < count_; ++t)
      row_[t] = static_cast<Store*>(const_cast<void*>(data)) + (first_ + t) * columns;
    return row_;
  }
  Store* saved(std::int64_t f) const {
    return static_cast<Store*>(a_.saved) + first_ * a_.hidden + (f0_ + f) * count_;
  }

  // The group as panels, value by value; with pairs of features where words are pairs.
  template <class Value>
  POM_INLINE void to_panels(Value value) {
    const std::int64_t step = words_of<P>(F_) * kPanel<P>;
    for (std::int64_t f = 0; f < F_; f += P::kPair)
      for (int t = 0; t < lanes_; t += L) {
        const V<Acc> even = value(f, t), odd = P::kPair == 2 && f + 1 < F_ ? value(f + 1, t) : V<Acc>{};
        const V<Word> word = P::words(even, odd);
        std::memcpy(panels_ + t / kPanel<P> * step + f / P::kPair * kPanel<P> + t % kPanel<P>, &word,
                    sizeof(word));
      }
  }
  POM_INLINE V<Acc> activate(std::int64_t f, int t) const {
    V<Acc> x = load(z_ + f * T_ + t);
    if (a_.b1) x += splat(load_some(static_cast<const Store*>(a_.b1) + f0_ + f, 1)[0]);
    if (a_.saved) store_some(saved(f) + t, x, count_ - t);
    return gelu<Acc>(x);
  }
  // The gradient before the activation; it and the activation are kept as rows for the weights' gradients.
  POM_INLINE V<Acc> slope(std::int64_t f, int t) const {
    V<Acc> value, slope;
    gelu_with_slope<Acc>(load_some(saved(f) + t, count_ - t), value, slope);
    slope *= load(z_ + f * T_ + t);
    put_row(slopes_, f, t, slope);
    put_row(values_, f, t, value);
    return slope;
  }
  POM_INLINE void put_row(Word* rows, std::int64_t f, int t, V<Acc> v) const {
    if constexpr (P::kPair == 2)
      store(reinterpret_cast<Store*>(rows) + f * T_ + t, v);
    else
      store(rows + f * T_ + t, v);
  }
  POM_INLINE V<Acc> slope_at(std::int64_t f, int t) const {
    if constexpr (P::kPair == 2)
      return load_some(reinterpret_cast<const Store*>(slopes_) + f * T_ + t, count_ - t);
    else
      return load_some(slopes_ + f * T_ + t, count_ - t);
  }

  // ---- gradients of weights: group g of a tile follows group g of the tile before ----

  void wait_for(std::int64_t g, std::int64_t turn) const {
    for (int spins = 0; a_.done[g].load(std::memory_order_acquire) != turn; ++spins) {
      if (spins > 4096) yield_thread();
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
  void add_weights(std::int64_t g, bool first, bool last) {
    add_gemms(a_.dw1, a_.ld1, slopes_, columns_x_, a_.in, first);
    add_gemms(a_.dw2_t, a_.ld2, values_, columns_dy_, a_.out, first);
    hidden_bias(first);
    if (g == 0) output_bias(first);
    if (!last) return;
    if (a_.dw1 != a_.gw1) finish();
    finish_transposed();
  }
  void add_gemms(void* dw, std::int64_t ld, const Word* rows, const Word* columns, std::int64_t width,
                 bool first) {
    const std::int64_t k = words_of<P>(count_);
    multiply_rows<P>(Extent{1, k, 0, 0}, rows, T_ / P::kPair, F_, columns, k * kPanel<P>,
                     static_cast<int>(width), static_cast<Acc*>(dw) + f0_ * ld, ld, !first);
  }
  void hidden_bias(bool first) {
    for (std::int64_t f = 0; f < F_; f += L) {
      V<Acc> total[L];
      for (int i = 0; i < L; ++i) {
        total[i] = V<Acc>{};
        for (int t = 0; f + i < F_ && t < count_; t += L) total[i] += slope_at(f + i, t);
      }
      transpose(total);
      for (int half = L / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) total[i] += total[i + half];
      add_some(static_cast<Acc*>(a_.db1) + f0_ + f, total[0], F_ - f, first);
    }
  }
  void output_bias(bool first) {
    Store** row = rows_of(a_.dy, a_.out);
    for (std::int64_t c = 0; c < a_.out; c += L) {
      V<Acc> total = {};
      for (int t0 = 0; t0 < count_; t0 += 16) {
        V<Acc> part = {};
        for (int t = t0; t < t0 + 16 && t < count_; ++t) part += load_some(row[t] + c, a_.out - c);
        total += part;
      }
      add_some(static_cast<Acc*>(a_.db2) + c, total, a_.out - c, first);
    }
  }
  static void add_some(Acc* place, V<Acc> v, std::int64_t n, bool first) {
    store_some(place, first ? v : load_some(place, n) + v, n);
  }
  // The group's rows, all tiles being in: from sums to the weights' own dtype and layout.
  void finish() const {
    for (std::int64_t f = f0_; f < f0_ + F_; ++f)
      for (std::int64_t j = 0; j < a_.in; j += L)
        store_some(static_cast<Store*>(a_.gw1) + f * a_.in + j,
                   load(static_cast<const Acc*>(a_.dw1) + f * a_.ld1 + j), a_.in - j);
  }
  void finish_transposed() const {
    for (std::int64_t j = 0; j < a_.out; j += L)
      for (std::int64_t f = 0; f < F_; f += L) {
        V<Acc> block[L];
#pragma GCC unroll 16
        for (int i = 0; i < L; ++i)
          block[i] =
              f + i < F_ ? load(static_cast<const Acc*>(a_.dw2_t) + (f0_ + f + i) * a_.ld2 + j) : V<Acc>{};
        transpose(block);
        for (int i = 0; i < L && j + i < a_.out; ++i)
          store_some(static_cast<Store*>(a_.gw2) + (j + i) * a_.hidden + f0_ + f, block[i], F_ - f);
      }
  }

  const FeedForwardArgs& a_;
  const std::int64_t T_;
  std::int64_t first_ = 0, f0_ = 0, F_ = 0;
  int count_ = 0, lanes_ = 0;
  char* base_;
  std::size_t used_ = 0;
  Word *x_, *panels_, *weights_, *strips_;
  Word *slopes_ = nullptr, *values_ = nullptr, *columns_x_ = nullptr, *columns_dy_ = nullptr;
  Acc *z_, *out_;
  Store** row_;
};

}  // namespace
}  // namespace pom::ops::cpu
