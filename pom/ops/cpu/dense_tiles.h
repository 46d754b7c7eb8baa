// The products of dense.h on one tile of rows. Hidden features are taken in groups, so that between the two
// matrices a thread holds group x T numbers, in cache. Scratch, lanes being tokens: panels of x, z[group][T],
// panels of the activated group, out[out][T].
#pragma once

#include "pom/ops/cpu/dense.h"
#include "pom/ops/cpu/row_panels.h"

namespace pom::ops::cpu {
namespace {

template <class P>
class DenseTile {
  using Store = typename P::Store;
  using Acc = typename P::Acc;
  using Word = typename P::Word;
  static constexpr int L = kLanes<Acc>;

 public:
  DenseTile(const DenseArgs& args, void* scratch)
      : a_(args), T_(args.tile), base_(static_cast<char*>(scratch)) {
    take(x_, static_cast<std::size_t>(T_ * words_of<P>(a_.in)));
    take(z_, static_cast<std::size_t>((a_.group + kRows) * T_));
    take(panels_, static_cast<std::size_t>(a_.hidden ? T_ * words_of<P>(a_.group) : 0));
    take(out_, static_cast<std::size_t>(a_.hidden ? (a_.out + kRows) * T_ : 0));
    const std::size_t one = weights_scratch<P>(1, a_.in),
                      two = a_.hidden ? weights_scratch<P>(1, a_.group) : 0;
    take(weights_, one > two ? one : two);
    for (Acc*** rows : {&row_, &gate_}) take(*rows, static_cast<std::size_t>(T_));
    for (const Acc*** rows : {&scale_, &shift_}) take(*rows, static_cast<std::size_t>(T_));
    take(prepared_, a_.before == Before::nothing ? 0 : prepared_scratch<P>(a_.in));
  }
  std::size_t scratch_bytes() const { return used_; }

  void run(std::int64_t r0, std::int64_t r1, std::int64_t f0, std::int64_t f1) {
    first_ = r0;
    count_ = static_cast<int>(r1 - r0);
    pack();
    if (a_.hidden)
      two_gemms();
    else
      for (std::int64_t f = f0; f < f1; f += a_.group) {
        const std::int64_t F = f1 - f < a_.group ? f1 - f : a_.group;
        gemm(f, F);
        unpack(z_, f, F, a_.b1);
      }
  }

 private:
  template <class X>
  void take(X*& pointer, std::size_t count) {
    pointer = base_ ? reinterpret_cast<X*>(base_ + used_) : nullptr;
    used_ += (count * sizeof(X) + 127) / 64 * 64;
  }

  template <class X>
  X* row_of(const Rows& rows, int t) const {
    const std::int64_t r = first_ + t;
    return static_cast<X*>(rows.data) + rows.at(r / a_.sequence_rows, r % a_.sequence_rows);
  }
  const Acc* of_sequence(const PerSequence& values, int t) const {
    return static_cast<const Acc*>(values.data) + (first_ + t) / a_.sequence_rows * values.stride;
  }

  void pack() {
    for (int t = 0; t < count_; ++t) row_[t] = row_of<Acc>(a_.x, t);
    if (a_.before == Before::nothing) return pack_plain<P>(row_, count_, a_.in, x_);
    if (a_.before == Before::silu) return pack_silu<P>(row_, count_, a_.in, prepared_, x_);
    for (int t = 0; t < count_; ++t)
      scale_[t] = of_sequence(a_.scale, t), shift_[t] = of_sequence(a_.shift, t);
    pack_normalised<P>(row_, scale_, shift_, count_, a_.in, a_.eps, prepared_, x_);
  }

  // z[F][T] = the features f0 .. f0 + F of the first product.
  void gemm(std::int64_t f0, std::int64_t F) {
    multiply_weights<P>(static_cast<const Store*>(a_.w1.data) + f0 * a_.w1.ld, a_.w1.ld, F, 1, a_.in, 0, x_,
                        words_of<P>(a_.in) * kPanel<P>, count_, z_, T_, false, weights_);
  }

  void two_gemms() {
    for (std::int64_t f0 = 0; f0 < a_.hidden; f0 += a_.group) {
      const std::int64_t F = a_.hidden - f0 < a_.group ? a_.hidden - f0 : a_.group;
      gemm(f0, F);
      activate(f0, F);
      multiply_weights<P>(static_cast<const Store*>(a_.w2.data) + f0, a_.w2.ld, a_.out, 1, F, 0, panels_,
                          words_of<P>(F) * kPanel<P>, count_, out_, T_, f0 != 0, weights_);
    }
    unpack(out_, 0, a_.out, a_.b2);
  }

  // act(z + bias) to panels.
  void activate(std::int64_t f0, std::int64_t F) {
    for (std::int64_t f = 0; f < F; f += P::kPair)
      for (int t = 0; t < count_; t += L) {
        const V<Acc> even = activated(f0, f, t),
                     odd = P::kPair == 2 && f + 1 < F ? activated(f0, f + 1, t) : V<Acc>{};
        const V<Word> word = P::words(even, odd);
        std::memcpy(
            panels_ + t / kPanel<P> * words_of<P>(F) * kPanel<P> + f / P::kPair * kPanel<P> + t % kPanel<P>,
            &word, sizeof(word));
      }
  }
  POM_INLINE V<Acc> activated(std::int64_t f0, std::int64_t f, int t) const {
    V<Acc> x = load(z_ + f * T_ + t);
    if (a_.b1) x += splat(load_some(static_cast<const Store*>(a_.b1) + f0 + f, 1)[0]);
    if (a_.between == Between::gelu) return gelu<Acc>(x);
    return a_.between == Between::gelu_tanh ? gelu_tanh<Acc>(x) : x * sigmoid<Acc>(x);
  }

  // Features c0 .. c0 + columns of the result, from C[columns][T].
  void unpack(const Acc* C, std::int64_t c0, std::int64_t columns, const void* biases) {
    const Store* bias = biases ? static_cast<const Store*>(biases) + c0 : nullptr;
    if (a_.after == After::store) {
      unpack_values<P>(C, T_, columns, bias, count_,
                       [&](int t, std::int64_t c, V<Acc> value, std::int64_t n) {
                         store_some(row_of<Store>(a_.y, t) + c0 + c, value, n);
                       });
      return;
    }
    for (int t = 0; t < count_; ++t) row_[t] = row_of<Acc>(a_.y, t) + c0;
    if (a_.after == After::residual) {
      for (int t = 0; t < count_; ++t) gate_[t] = const_cast<Acc*>(of_sequence(a_.gate, t)) + c0;
      unpack_residual<P>(C, T_, columns, bias, row_, gate_, count_);
    } else {
      unpack_values<P>(
          C, T_, columns, bias, count_,
          [&](int t, std::int64_t c, V<Acc> value, std::int64_t n) { store_some(row_[t] + c, value, n); });
    }
  }

  const DenseArgs& a_;
  const std::int64_t T_;
  std::int64_t first_ = 0;
  int count_ = 0;
  char* base_;
  std::size_t used_ = 0;
  Word *x_, *panels_, *weights_;
  Acc *z_, *out_, *prepared_;
  Acc **row_, **gate_;
  const Acc **scale_, **shift_;
};

}  // namespace
}  // namespace pom::ops::cpu
