// The projected form on rows as they lie in memory: lanes are features, tokens go by one after another. Bound
// by memory, so each thread takes a block of features of one sequence and keeps its sums in cache.
#pragma once

#include "pom/ops/cpu/math.h"
#include "pom/ops/cpu/walk.h"

namespace pom::ops::cpu {
namespace {

template <class S>
class MixRows {
  using Acc = Arithmetic<S>;
  static constexpr int L = kLanes<Acc>;
  static constexpr int kBlock = 64;  // features of a degree taken together

 public:
  MixRows(const MixArgs& args, void* scratch) : a_(args), k_(args.order) {
    Acc* p = static_cast<Acc*>(scratch);
    width_ = k_ * kBlock;
    h_ = p, sum_ = p + width_, part_ = p + 2 * width_, state_ = p + 3 * width_;
  }
  static std::size_t scratch_bytes(const MixArgs& a) {
    const std::int64_t rows = 3 + (a.scan.block ? a.scan.state_rows() : 0);
    return static_cast<std::size_t>(rows * a.order * kBlock) * sizeof(Acc);
  }

  void forward(std::int64_t s, std::int64_t f0, std::int64_t f1) {
    for (std::int64_t f = f0; f < f1; f += kBlock) {
      set_block(s, f, f1);
      if (a_.scan.block == 0) {
        whole_sequence();
        for (std::int64_t t = 0; t < a_.queries[s_]; ++t) emit(t);
      } else {
        for (std::int64_t b = 0; b < blocks_; ++b) {
          walk_block(b, false);
          for (std::int64_t t = begin(b); t < end(b); ++t) emit(t);
        }
      }
    }
  }

  void backward(std::int64_t s, std::int64_t f0, std::int64_t f1) {
    for (std::int64_t f = f0; f < f1; f += kBlock) {
      set_block(s, f, f1);
      if (a_.scan.block == 0) {
        whole_sequence();
        backward_whole();
      } else {
        for (std::int64_t b = 0; b < blocks_; ++b) {
          walk_block(b, false);
          for (std::int64_t t = begin(b); t < end(b); ++t) query_gradient(t);
        }
        for (std::int64_t b = blocks_ - 1; b >= 0; --b) {
          walk_block(b, true);
          for (std::int64_t t = begin(b); t < end(b); ++t) context_gradient(t);
        }
      }
    }
  }

 private:
  void set_block(std::int64_t s, std::int64_t f, std::int64_t f1) {
    s_ = s, f_ = f, F_ = f1 - f < kBlock ? f1 - f : kBlock;
    n_ = a_.keys_count[s];
    blocks_ = a_.scan.block ? a_.scan.blocks(n_) : 0;
  }
  std::int64_t begin(std::int64_t b) const { return b * a_.scan.block; }
  std::int64_t end(std::int64_t b) const {
    return (b + 1) * a_.scan.block < n_ ? (b + 1) * a_.scan.block : n_;
  }
  bool visible(std::int64_t t) const { return !a_.keys || a_.keys[s_ * a_.keys_stride + t]; }
  S* at(const Rows& x, std::int64_t t, std::int64_t c) const {
    return static_cast<S*>(x.data) + x.at(s_, t) + c * a_.D + f_;
  }
  void clear(Acc* row) { std::memset(row, 0, static_cast<std::size_t>(width_) * sizeof(Acc)); }

  // Calls body(c, v) for every vector of features of every degree: c * kBlock + v is its place in a row of
  // scratch.
  template <class Body>
  POM_INLINE void each(Body body) {
    for (std::int64_t c = 0; c < k_; ++c)
      for (std::int64_t v = 0; v < F_; v += L) body(c, v);
  }
  template <class Value>
  POM_INLINE void add(Acc* row, Value value) {
    each([&](std::int64_t c, std::int64_t v) {
      Acc* p = row + c * kBlock + v;
      store(p, load(p) + value(c, v));
    });
  }

  void add_powers(std::int64_t t, Acc* row) {
    for (std::int64_t v = 0; v < F_; v += L) {
      V<Acc> run = {};
      for (std::int64_t c = 0; c < k_; ++c) {
        const V<Acc> h = gelu<Acc>(load_some(at(a_.ho, t, c) + v, F_ - v));
        run = c == 0 ? h : run * h;
        Acc* p = row + c * kBlock + v;
        store(p, load(p) + run);
      }
    }
  }
  POM_INLINE V<Acc> gated_gradient(std::int64_t t, std::int64_t c, std::int64_t v) {
    return load_some(at(a_.dout, t, c) + v, F_ - v) * sigmoid<Acc>(load_some(at(a_.se, t, c) + v, F_ - v));
  }

  // sum_ = sum over tokens, kSub at a time, of what add_token adds.
  template <class AddToken>
  std::int64_t sum_in_parts(std::int64_t tokens, AddToken add_token) {
    clear(sum_);
    std::int64_t count = 0;
    for (std::int64_t t0 = 0; t0 < tokens; t0 += kSub) {
      clear(part_);
      for (std::int64_t t = t0; t < t0 + kSub && t < tokens; ++t) count += add_token(t);
      add(sum_, [&](std::int64_t c, std::int64_t v) { return load(part_ + c * kBlock + v); });
    }
    return count;
  }
  void set_h(double scale) {
    each([&](std::int64_t c, std::int64_t v) {
      store(h_ + c * kBlock + v, load(sum_ + c * kBlock + v) * splat(static_cast<Acc>(scale)));
    });
  }

  void whole_sequence() {
    const std::int64_t count = sum_in_parts(n_, [&](std::int64_t t) {
      if (!visible(t)) return 0;
      add_powers(t, part_);
      return 1;
    });
    scale_ = 1.0 / ((a_.plain_mean ? 0.0 : 1e-7) + static_cast<double>(count));
    set_h(scale_);
  }

  // h_ = what the tokens of block b see (forward), or the gradient that reaches them (backwards).
  void walk_block(std::int64_t b, bool backwards) {
    const std::int64_t seen_from = a_.scan.window && b >= a_.scan.window ? begin(b - a_.scan.window + 1) : 0;
    const double inverse = 1.0 / (1e-7 + static_cast<double>(end(b) - seen_from));
    sum_in_parts(end(b) - begin(b), [&](std::int64_t i) {
      const std::int64_t t = begin(b) + i;
      if (backwards)
        add(part_, [&](std::int64_t c, std::int64_t v) { return gated_gradient(t, c, v); });
      else
        add_powers(t, part_);
      return 1;
    });
    each([&](std::int64_t c, std::int64_t v) {
      const std::int64_t i = c * kBlock + v;
      const Walker<Acc> walker{state_ + i, width_, window_within(a_.scan.window, blocks_), L};
      const V<Acc> factor = splat(static_cast<Acc>(inverse)), sum = load(sum_ + i);
      const V<Acc> seen =
          walker.add(backwards ? blocks_ - 1 - b : b, backwards ? sum * factor : sum, V<Acc>{});
      store(h_ + i, backwards ? seen : seen * factor);
    });
  }

  void emit(std::int64_t t) {
    each([&](std::int64_t c, std::int64_t v) {
      const V<Acc> gate = sigmoid<Acc>(load_some(at(a_.se, t, c) + v, F_ - v));
      store_some(at(a_.out, t, c) + v, gate * load(h_ + c * kBlock + v), F_ - v);
    });
  }
  void query_gradient(std::int64_t t) {
    each([&](std::int64_t c, std::int64_t v) {
      const V<Acc> gate = sigmoid<Acc>(load_some(at(a_.se, t, c) + v, F_ - v));
      const V<Acc> d = load_some(at(a_.dout, t, c) + v, F_ - v) * load(h_ + c * kBlock + v);
      store_some(at(a_.dse, t, c) + v, d * gate * (splat(Acc(1)) - gate), F_ - v);
    });
  }
  // h_ holds dL/d(running product).
  void context_gradient(std::int64_t t) {
    const bool seen = visible(t);
    for (std::int64_t v = 0; v < F_; v += L) {
      V<Acc> h[kMaxOrder], slope[kMaxOrder], run[kMaxOrder], through = {};
      for (std::int64_t c = 0; c < k_; ++c) {
        gelu_with_slope<Acc>(load_some(at(a_.ho, t, c) + v, F_ - v), h[c], slope[c]);
        run[c] = c == 0 ? h[0] : run[c - 1] * h[c];
      }
      for (std::int64_t c = k_ - 1; c >= 0; --c) {
        const V<Acc> direct = load(h_ + c * kBlock + v);
        through = c + 1 < k_ ? direct + through * h[c + 1] : direct;
        const V<Acc> g = (c == 0 ? through : through * run[c - 1]) * slope[c];
        store_some(at(a_.dho, t, c) + v, seen ? g : V<Acc>{}, F_ - v);
      }
    }
  }
  void backward_whole() {
    for (std::int64_t t = 0; t < a_.queries[s_]; ++t) query_gradient(t);
    sum_in_parts(a_.queries[s_], [&](std::int64_t t) {
      add(part_, [&](std::int64_t c, std::int64_t v) { return gated_gradient(t, c, v); });
      return 1;
    });
    set_h(scale_);
    for (std::int64_t t = 0; t < n_; ++t) context_gradient(t);
  }

  const MixArgs& a_;
  const std::int64_t k_;
  std::int64_t width_, s_ = 0, f_ = 0, F_ = 0, n_ = 0, blocks_ = 0;
  double scale_ = 0;
  Acc *h_, *sum_, *part_, *state_;
};

}  // namespace
}  // namespace pom::ops::cpu
