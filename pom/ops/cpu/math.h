// exp, the normal CDF and what the operator needs of them, on vectors. fp32 is by polynomials fitted in
// tools/fit_math.py (within 4e-7 of the truth in absolute terms, the size of fp32's own rounding); fp64 calls
// libm.
#pragma once

#include "pom/ops/cpu/vec.h"

namespace pom::ops::cpu {
namespace {

template <class F>
POM_INLINE V<double> lanewise(V<double> x, F f) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = f(x[i]);
  return x;
}

// 1 / b for the b of this file (between 1 and 2^116): within a unit or so in the last place, faster than
// dividing.
POM_INLINE V<float> reciprocal(V<float> b) {
#if defined(__AVX512F__)
  const V<float> r = bits<V<float>>(_mm512_rcp14_ps(bits<__m512>(b)));
  return fma<float>(r, fma<float>(-b, r, splat(1.0f)), r);
#else
  return splat(1.0f) / b;
#endif
}
POM_INLINE V<double> reciprocal(V<double> b) {
  return splat(1.0) / b;
}

// 2^n p for whole n.
POM_INLINE V<float> scale_by_power(V<float> p, V<float> n) {
#if defined(__AVX512F__)
  return bits<V<float>>(_mm512_scalef_ps(bits<__m512>(p), bits<__m512>(n)));
#else
  using I = VecOf<std::int32_t, kLanes<float>>::type;
  return p * bits<V<float>>((__builtin_convertvector(n, I) + 127) << 23);
#endif
}

// e^x = 2^n 2^r with |r| <= 1/2; beyond e^-80 and e^80, those.
POM_INLINE V<float> vexp(V<float> x) {
  x = clamp(x, -80.0f, 80.0f);
  const V<float> shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V<float> n = fma<float>(x, splat(1.44269502e+00f), shift) - shift;
  V<float> r = fma<float>(x, splat(1.44269502e+00f), -n);
  r = fma<float>(x, splat(1.92596303e-08f), r);
  V<float> p = splat(1.535336206e-04f);
  p = fma<float>(p, r, splat(1.339887459e-03f));
  p = fma<float>(p, r, splat(9.618437358e-03f));
  p = fma<float>(p, r, splat(5.550332471e-02f));
  p = fma<float>(p, r, splat(2.402264791e-01f));
  p = fma<float>(p, r, splat(6.931472029e-01f));
  p = fma<float>(p, r, splat(1.0f));
  return scale_by_power(p, n);
}
POM_INLINE V<double> vexp(V<double> x) {
  return lanewise(x, [](double v) { return std::exp(v); });
}

// erf(x / sqrt 2) = x P(x^2) / Q(x^2), which passes 1 just where erf is 1 in fp32.
POM_INLINE V<float> erf_over_sqrt2(V<float> x) {
  x = clamp(x, -6.0f, 6.0f);
  const V<float> u = x * x;
  V<float> p = splat(4.428989691e-08f), q = splat(1.180200180e-06f);
  p = fma<float>(p, u, splat(1.271303500e-05f));
  q = fma<float>(q, u, splat(7.510246712e-05f));
  p = fma<float>(p, u, splat(3.477058754e-04f));
  q = fma<float>(q, u, splat(1.912991054e-03f));
  p = fma<float>(p, u, splat(9.414545779e-03f));
  q = fma<float>(q, u, splat(2.894022517e-02f));
  p = fma<float>(p, u, splat(6.875271042e-02f));
  q = fma<float>(q, u, splat(2.528344570e-01f));
  p = fma<float>(p, u, splat(7.978844431e-01f));
  q = fma<float>(q, u, splat(1.0f));
  return clamp(x * p * reciprocal(q), -1.0f, 1.0f);
}
POM_INLINE V<double> erf_over_sqrt2(V<double> x) {
  return lanewise(x, [](double v) { return std::erf(v * 0.70710678118654752440); });
}

template <class A>
POM_INLINE V<A> sigmoid(V<A> x) {
  return reciprocal(splat<A>(1) + vexp(-x));
}

template <class A>
POM_INLINE V<A> gelu(V<A> x) {
  const V<A> half = splat<A>(A(0.5)) * x;
  return fma<A>(half, erf_over_sqrt2(x), half);
}

// x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x sigmoid(2 u).
template <class A>
POM_INLINE V<A> gelu_tanh(V<A> x) {
  const V<A> u = fma<A>(splat<A>(A(0.044715)) * x * x, x, x);
  return x * sigmoid<A>(splat<A>(A(1.59576912160573071176)) * u);
}

// gelu(x) and its derivative Phi(x) + x phi(x).
template <class A>
POM_INLINE void gelu_with_slope(V<A> x, V<A>& value, V<A>& slope) {
  const V<A> half = splat<A>(A(0.5)), cdf = fma<A>(half, erf_over_sqrt2(x), half);
  const V<A> density = splat<A>(A(0.39894228040143267794)) * vexp(splat<A>(A(-0.5)) * x * x);
  value = x * cdf;
  slope = fma<A>(x, density, cdf);
}

}  // namespace
}  // namespace pom::ops::cpu
