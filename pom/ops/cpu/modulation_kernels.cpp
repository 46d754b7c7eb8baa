// Compiled once for each instruction set, with POM_ISA naming it; dispatch.cpp picks one at run time.
#include "pom/ops/cpu/modulation.h"
#include "pom/ops/cpu/vec.h"

#define POM_JOIN2(a, b) a##b
#define POM_JOIN(a, b) POM_JOIN2(a, b)

namespace pom::ops::cpu {
namespace {

// A whole vector of columns, or the last few of a row.
struct Whole {};
struct Part {
  std::int64_t n;
};
template <class S>
POM_INLINE V<Arithmetic<S>> get(const S* p, Whole) {
  return load(p);
}
template <class S>
POM_INLINE V<Arithmetic<S>> get(const S* p, Part part) {
  return load_some(p, part.n);
}
template <class S>
POM_INLINE void put(S* p, V<Arithmetic<S>> v, Whole) {
  store(p, v);
}
template <class S>
POM_INLINE void put(S* p, V<Arithmetic<S>> v, Part part) {
  store_some(p, v, part.n);
}
template <class Vec>
POM_INLINE Vec masked(Vec v, Whole) {
  return v;
}
template <class Vec>
POM_INLINE Vec masked(Vec v, Part part) {
  for (int i = 0; i < static_cast<int>(sizeof(v) / sizeof(v[0])); ++i) v[i] = i < part.n ? v[i] : 0;
  return v;
}

template <class A, class F>
POM_INLINE void columns(std::int64_t d, F f) {
  std::int64_t c = 0;
  for (; c + kLanes<A> <= d; c += kLanes<A>) f(c, Whole{});
  if (c < d) f(c, Part{d - c});
}

template <class A>
POM_INLINE A total(V<A> v) {
  A sum = 0;
  for (int i = 0; i < kLanes<A>; ++i) sum += v[i];
  return sum;
}

// X the dtype of the stream, Y that of the branches.
template <class X, class Y>
class ModulationRows {
 public:
  using A = Arithmetic<X>;
  using Vec = V<A>;

  ModulationRows(const ModulationArgs& a, std::int64_t block)
      : a_(a),
        picture_(block / a.blocks_each()),
        first_(picture_ * a.tokens + block % a.blocks_each() * kSub),
        last_(smaller(first_ + kSub, (picture_ + 1) * a.tokens)),
        gate_(per_picture(a.gate)),
        scale_(per_picture(a.scale)),
        shift_(per_picture(a.shift)) {
    if (!a.sums) return;
    dscale_ = static_cast<A*>(a.sums) + block * ModulationArgs::kSums * a.d;
    dshift_ = dscale_ + a.d, dgate_ = dshift_ + a.d;
  }

  void forward() const {
    for (std::int64_t r = first_; r < last_; ++r) {
      const X* row = at<X>(a_.x, r);
      if (a_.y) {
        add(r);
        row = at<X>(a_.sum, r);
      }
      if (a_.out) normalise(r, row);
    }
  }

  void backward() const {
    for (std::int64_t i = 0; i < ModulationArgs::kSums * a_.d; ++i) dscale_[i] = 0;
    for (std::int64_t r = first_; r < last_; ++r) {
      if (a_.dout) norm_backward(r);
      if (a_.y) gate_backward(r);
    }
  }

 private:
  static std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
  template <class S>
  const S* at(const void* p, std::int64_t row) const {
    return static_cast<const S*>(p) + row * a_.d;
  }
  template <class S>
  S* at(void* p, std::int64_t row) const {
    return static_cast<S*>(p) + row * a_.d;
  }
  const A* per_picture(const void* p) const { return p ? at<A>(p, picture_) : nullptr; }

  void add(std::int64_t r) const {
    const X* x = at<X>(a_.x, r);
    const Y* y = at<Y>(a_.y, r);
    X* sum = at<X>(a_.sum, r);
    const Vec base = splat(static_cast<A>(a_.base));
    columns<A>(a_.d, [&](std::int64_t c, auto n) {
      put(sum + c, fma<A>(get(y + c, n), base + get(gate_ + c, n), get(x + c, n)), n);
    });
  }

  void normalise(std::int64_t r, const X* x) const {
    Y* out = at<Y>(a_.out, r);
    Vec sum = {}, squares = {};
    columns<A>(a_.d, [&](std::int64_t c, auto n) { sum += get(x + c, n); });
    const A mean = total<A>(sum) / static_cast<A>(a_.d);
    columns<A>(a_.d, [&](std::int64_t c, auto n) {
      const Vec off = masked(get(x + c, n) - splat(mean), n);
      squares = fma<A>(off, off, squares);
    });
    const A rstd = A(1) / std::sqrt(total<A>(squares) / static_cast<A>(a_.d) + static_cast<A>(a_.eps));
    if (a_.mean) static_cast<A*>(a_.mean)[r] = mean, static_cast<A*>(a_.rstd)[r] = rstd;
    columns<A>(a_.d, [&](std::int64_t c, auto n) {
      const Vec normal = (get(x + c, n) - splat(mean)) * splat(rstd);
      put(out + c, fma<A>(normal, splat(A(1)) + get(scale_ + c, n), get(shift_ + c, n)), n);
    });
  }

  // With n the normalised row and g = dout * (1 + scale): dx = rstd * (g - mean(g) - n * mean(g * n)).
  void norm_backward(std::int64_t r) const {
    const X *x = at<X>(a_.x, r), *dsum = a_.dsum ? at<X>(a_.dsum, r) : nullptr;
    const Y* dout = at<Y>(a_.dout, r);
    X* dx = at<X>(a_.dx, r);
    const Vec mean = splat(static_cast<const A*>(a_.mean)[r]),
              rstd = splat(static_cast<const A*>(a_.rstd)[r]);
    Vec plain = {}, along = {};
    columns<A>(a_.d, [&](std::int64_t c, auto n) {
      const Vec normal = (get(x + c, n) - mean) * rstd, up = get(dout + c, n);
      const Vec g = up * (splat(A(1)) + get(scale_ + c, n));
      plain += g;
      along = fma<A>(g, normal, along);
      put(dscale_ + c, fma<A>(up, normal, get(dscale_ + c, n)), n);
      put(dshift_ + c, get(dshift_ + c, n) + up, n);
    });
    const Vec m0 = splat(total<A>(plain) / static_cast<A>(a_.d));
    const Vec m1 = splat(total<A>(along) / static_cast<A>(a_.d));
    columns<A>(a_.d, [&](std::int64_t c, auto n) {
      const Vec normal = (get(x + c, n) - mean) * rstd;
      const Vec g = get(dout + c, n) * (splat(A(1)) + get(scale_ + c, n));
      const Vec own = (g - m0 - normal * m1) * rstd;
      put(dx + c, dsum ? own + get(dsum + c, n) : own, n);
    });
  }

  void gate_backward(std::int64_t r) const {
    const X* dsum = a_.dout ? at<X>(a_.dx, r) : at<X>(a_.dsum, r);
    const Y* y = at<Y>(a_.y, r);
    Y* dy = at<Y>(a_.dy, r);
    const Vec base = splat(static_cast<A>(a_.base));
    columns<A>(a_.d, [&](std::int64_t c, auto n) {
      const Vec up = get(dsum + c, n);
      put(dy + c, up * (base + get(gate_ + c, n)), n);
      put(dgate_ + c, fma<A>(up, get(y + c, n), get(dgate_ + c, n)), n);
    });
  }

  const ModulationArgs& a_;
  std::int64_t picture_, first_, last_;  // rows of the block
  const A *gate_, *scale_, *shift_;
  A *dscale_ = nullptr, *dshift_ = nullptr, *dgate_ = nullptr;
};

template <class A>
void fold_sums(const ModulationArgs& a, std::int64_t picture) {
  A* const target[] = {static_cast<A*>(a.dscale), static_cast<A*>(a.dshift), static_cast<A*>(a.dgate)};
  const A* blocks = static_cast<const A*>(a.sums) + picture * a.blocks_each() * ModulationArgs::kSums * a.d;
  for (std::int64_t i = 0; i < ModulationArgs::kSums; ++i) {
    if (!target[i]) continue;
    columns<A>(a.d, [&](std::int64_t c, auto n) {
      V<A> sum = {};
      for (std::int64_t b = 0; b < a.blocks_each(); ++b)
        sum += get(blocks + (b * ModulationArgs::kSums + i) * a.d + c, n);
      put(target[i] + picture * a.d + c, sum, n);
    });
  }
}

template <class X, class Y>
struct ModulationTable {
  static void forward(const ModulationArgs& a, std::int64_t block) {
    ModulationRows<X, Y>(a, block).forward();
  }
  static void backward(const ModulationArgs& a, std::int64_t block) {
    ModulationRows<X, Y>(a, block).backward();
  }
  static constexpr ModulationKernels kernels{
      .forward = forward, .backward = backward, .fold = fold_sums<Arithmetic<X>>};
};

}  // namespace

const ModulationKernels* POM_JOIN(modulation_, POM_ISA)(DType stream, DType branch) {
  if (stream == DType::f64) return &ModulationTable<double, double>::kernels;
  if (stream == DType::f32)
    return branch == DType::f32 ? &ModulationTable<float, float>::kernels
                                : &ModulationTable<float, BF16>::kernels;
  return branch == DType::f32 ? &ModulationTable<BF16, float>::kernels
                              : &ModulationTable<BF16, BF16>::kernels;
}

}  // namespace pom::ops::cpu
