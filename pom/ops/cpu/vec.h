// Vectors of one instruction set, chosen by the flags this file is compiled with: GCC/Clang vector types,
// loads and stores that convert between storage (fp32, fp64, bf16, fp16) and arithmetic (fp32, fp64), and
// transposes. Everything here has internal linkage, because the same source is compiled once for each
// instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "pom/ops/cpu/kernels.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define POM_INLINE inline __attribute__((always_inline))

namespace pom::ops::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class A, int Lanes = kVectorBytes / static_cast<int>(sizeof(A))>
struct VecOf {
  typedef A type __attribute__((vector_size(Lanes * sizeof(A))));
};
template <class A>
using V = typename VecOf<A>::type;
template <class A>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(A));

template <class To, class From>
POM_INLINE To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class A>
POM_INLINE V<A> splat(A value) {
  return value - V<A>{};
}
template <>
POM_INLINE V<std::uint32_t> splat(std::uint32_t value) {
  return value | V<std::uint32_t>{};
}

// a * b + c in one rounding where the processor can, said aloud: these files are compiled without
// contraction, which a compiler does in one inlined copy and not in the next, so that a value would depend on
// its place.
template <class A>
POM_INLINE V<A> fma(V<A> a, V<A> b, V<A> c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(A) == 4)
    return bits<V<A>>(_mm512_fmadd_ps(bits<__m512>(a), bits<__m512>(b), bits<__m512>(c)));
  else
    return bits<V<A>>(_mm512_fmadd_pd(bits<__m512d>(a), bits<__m512d>(b), bits<__m512d>(c)));
#elif defined(__AVX2__) && defined(__FMA__)
  if constexpr (sizeof(A) == 4)
    return bits<V<A>>(_mm256_fmadd_ps(bits<__m256>(a), bits<__m256>(b), bits<__m256>(c)));
  else
    return bits<V<A>>(_mm256_fmadd_pd(bits<__m256d>(a), bits<__m256d>(b), bits<__m256d>(c)));
#elif defined(__ARM_FEATURE_FMA)
  V<A> out;
  for (int i = 0; i < kLanes<A>; ++i) out[i] = std::fma(a[i], b[i], c[i]);
  return out;
#else
  return a * b + c;
#endif
}

// Written so that a NaN comes through.
POM_INLINE V<float> clamp(V<float> x, float low, float high) {
#if defined(__AVX512F__)  // these two give their second operand when one is a NaN
  const __m512 above = _mm512_max_ps(bits<__m512>(splat(low)), bits<__m512>(x));
  return bits<V<float>>(_mm512_min_ps(bits<__m512>(splat(high)), above));
#else
  x = x < splat(low) ? splat(low) : x;
  return x > splat(high) ? splat(high) : x;
#endif
}

// ---- storage to arithmetic and back ----

using U32 = VecOf<std::uint32_t, kLanes<float>>::type;
using U16 = VecOf<std::uint16_t, kLanes<float>>::type;

// Round-to-nearest-even bf16 in the upper half of each lane; the lower half is left over from the rounding.
POM_INLINE U32 round_bf16(V<float> x) {
  const U32 b = bits<U32>(x);
  const U32 rounded = b + 0x7fffu + ((b >> 16) & 1u);
  return x == x ? rounded : (b | 0x400000u);
}

POM_INLINE V<float> load(const float* p) {
  V<float> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
POM_INLINE V<double> load(const double* p) {
  V<double> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
POM_INLINE V<float> load(const BF16* p) {
  U16 raw;
  std::memcpy(&raw, p, sizeof(raw));
  return bits<V<float>>(__builtin_convertvector(raw, U32) << 16);
}
POM_INLINE void store(float* p, V<float> v) {
  std::memcpy(p, &v, sizeof(v));
}
POM_INLINE void store(double* p, V<double> v) {
  std::memcpy(p, &v, sizeof(v));
}
POM_INLINE void store(BF16* p, V<float> v) {
  const U16 raw = __builtin_convertvector(round_bf16(v) >> 16, U16);
  std::memcpy(p, &raw, sizeof(raw));
}

#if !defined(__AVX512F__) && !(defined(__AVX2__) && defined(__F16C__))
// fp16 without conversion instructions: by integers, exactly as IEEE rounds.
POM_INLINE float from_half(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
  if (exponent == 31) return bits<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float small = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -small : small;
}
POM_INLINE std::uint16_t to_half(float x) {
  const std::uint32_t b = bits<std::uint32_t>(x);
  const std::uint16_t sign = static_cast<std::uint16_t>((b >> 16) & 0x8000u);
  const std::uint32_t magnitude = b & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded mantissa in the low bits
    const float shifted = bits<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(bits<std::uint32_t>(shifted) - 0x3f000000u);
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000u) >> 13);
}
#endif

POM_INLINE V<float> load(const F16* p) {
#if defined(__AVX512F__)
  return bits<V<float>>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__AVX2__) && defined(__F16C__)
  return bits<V<float>>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  float lane[kLanes<float>];
  for (int i = 0; i < kLanes<float>; ++i) lane[i] = from_half(p[i].bits);
  return load(lane);
#endif
}
POM_INLINE void store(F16* p, V<float> v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(bits<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__) && defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(bits<__m256>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  float lane[kLanes<float>];
  store(lane, v);
  for (int i = 0; i < kLanes<float>; ++i) p[i].bits = to_half(lane[i]);
#endif
}

template <class S>
struct ArithmeticOf {
  using type = float;
};
template <>
struct ArithmeticOf<double> {
  using type = double;
};
template <class S>
using Arithmetic = typename ArithmeticOf<S>::type;

// The first n lanes from memory, the others zero; and the first n lanes to memory.
template <class S>
POM_INLINE V<Arithmetic<S>> load_some(const S* p, std::int64_t n) {
  if (n >= kLanes<Arithmetic<S>>) return load(p);
  S part[kLanes<Arithmetic<S>>] = {};
  if (n > 0) std::memcpy(static_cast<void*>(part), p, static_cast<std::size_t>(n) * sizeof(S));
  return load(part);
}
template <class S>
POM_INLINE void store_some(S* p, V<Arithmetic<S>> v, std::int64_t n) {
  if (n >= kLanes<Arithmetic<S>>) return store(p, v);
  S part[kLanes<Arithmetic<S>>];
  store(part, v);
  if (n > 0) std::memcpy(static_cast<void*>(p), part, static_cast<std::size_t>(n) * sizeof(S));
}

// ---- transposes ----

template <int Distance, bool Upper, class Vec, int... J>
POM_INLINE Vec exchange(Vec a, Vec b, std::integer_sequence<int, J...>) {
  constexpr int n = sizeof...(J);
  if constexpr (Upper)
    return __builtin_shufflevector(a, b, ((J & Distance) ? J + n : J + Distance)...);
  else
    return __builtin_shufflevector(a, b, ((J & Distance) ? J - Distance + n : J)...);
}
template <int Distance, class Vec, int N>
POM_INLINE void transpose_stage(Vec (&row)[N]) {
  using Lanes = std::make_integer_sequence<int, N>;
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
    if (i & Distance) continue;
    const Vec a = row[i], b = row[i + Distance];
    row[i] = exchange<Distance, false>(a, b, Lanes{});
    row[i + Distance] = exchange<Distance, true>(a, b, Lanes{});
  }
}
// A square of registers, rows to columns: 2x2 exchanges at growing distance.
template <class Vec, int N>
POM_INLINE void transpose(Vec (&row)[N]) {
  transpose_stage<1>(row);
  if constexpr (N > 2) transpose_stage<2>(row);
  if constexpr (N > 4) transpose_stage<4>(row);
  if constexpr (N > 8) transpose_stage<8>(row);
}

}  // namespace
}  // namespace pom::ops::cpu
