// The arithmetic behind noise.h, for CPU and GPU alike: Philox4x32-10 and a Box-Muller transform in which
// every rounding is spelled out, so that no compiler, flag or device can change a bit.
//
// The rules that make it so:
//  - integer operations, conversions from int32, and the exactly rounded IEEE operations fma, + and sqrt in
//    single precision, to nearest; nothing else;
//  - a product is always an fma (multiply(a, b) is fma(a, b, 0)), so there is nothing left to contract;
//  - one fixed order of evaluation and no branches: both sides are computed and one is selected;
//  - every value is 0 or a normal number, so flushing subnormals (FTZ, DAZ, -ftz=true) changes nothing.
// It must not be compiled with -ffast-math on the CPU.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define POM_HD __host__ __device__ __forceinline__
#else
// Always inlined, so that a caller compiled for a larger instruction set carries it along.
#define POM_HD inline __attribute__((always_inline))
#endif

#if defined(__FAST_MATH__) && !defined(__CUDA_ARCH__)
#error "noise_math.h: -ffast-math lets the compiler change the noise; build this file without it"
#endif

namespace pom::noise_math {

POM_HD float fused(float a, float b, float c) {  // a·b + c, rounded once
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

POM_HD float multiply(float a, float b) {
  return fused(a, b, 0.0f);
}

POM_HD float add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

POM_HD float root(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

POM_HD float to_float(int32_t a) {
#if defined(__CUDA_ARCH__)
  return __int2float_rn(a);
#else
  return static_cast<float>(a);
#endif
}

POM_HD float from_bits(int32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

POM_HD int32_t to_bits(float value) {
  int32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// mask is all ones (yes) or 0 (no). In integers, as compilers may turn ?: into a branch and not vectorise.
POM_HD float select(int32_t mask, float yes, float no) {
  return from_bits((to_bits(yes) & mask) | (to_bits(no) & ~mask));
}

// ---- Philox

struct Words {  // four 32-bit words: a counter going in, random bits coming out
  uint32_t a, b, c, d;
};

struct PhiloxKey {
  uint32_t low, high;
};

POM_HD Words philox_round(Words x, PhiloxKey key) {
  const uint64_t p = uint64_t{0xD2511F53u} * x.a;
  const uint64_t q = uint64_t{0xCD9E8D57u} * x.c;
  return {static_cast<uint32_t>(q >> 32) ^ x.b ^ key.low, static_cast<uint32_t>(q),
          static_cast<uint32_t>(p >> 32) ^ x.d ^ key.high, static_cast<uint32_t>(p)};
}

POM_HD PhiloxKey philox_bump(PhiloxKey key) {
  return {key.low + 0x9E3779B9u, key.high + 0xBB67AE85u};
}

// Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// The ten rounds are written out because a loop in here would keep compilers from vectorising over counters.
POM_HD Words philox(Words x, PhiloxKey k0) {
  const PhiloxKey k1 = philox_bump(k0), k2 = philox_bump(k1), k3 = philox_bump(k2), k4 = philox_bump(k3);
  const PhiloxKey k5 = philox_bump(k4), k6 = philox_bump(k5), k7 = philox_bump(k6), k8 = philox_bump(k7);
  const PhiloxKey k9 = philox_bump(k8);
  x = philox_round(philox_round(philox_round(philox_round(philox_round(x, k0), k1), k2), k3), k4);
  return philox_round(philox_round(philox_round(philox_round(philox_round(x, k5), k6), k7), k8), k9);
}

// What is drawn. It is part of the counter, so that a key used for two kinds of draw gives unrelated numbers.
enum class Draw : uint32_t { bits = 0, uniform = 1, normal = 2 };

// The four words of positions 4·block … 4·block + 3 under (seed, purpose, step), laid out as noise.h says.
POM_HD Words words_at(Draw draw, uint64_t seed, uint32_t purpose, uint32_t step, uint64_t block) {
  const Words counter{static_cast<uint32_t>(block),
                      static_cast<uint32_t>(block >> 32) | static_cast<uint32_t>(draw) << 30, step, purpose};
  return philox(counter, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// ---- transforms

struct Four {  // the values of four positions
  float a, b, c, d;
};

struct Pair {
  float a, b;
};

// An odd multiple of 2^-24: never 0, never 1, symmetric about 1/2.
POM_HD float uniform_from(uint32_t word) {
  return fused(to_float(static_cast<int32_t>(word >> 9)), 0x1p-23f, 0x1p-24f);
}

// √(−2·ln u) for u = (high + (low + ½)/256) / 2^32, that is with 40 bits; low < 256. The largest is 7.539.
POM_HD float radius_from(uint32_t high, uint32_t low) {
  // x is u·2^32 below one half and (u − 1)·2^32 above, so that u near 1 keeps its precision as u near 0 does.
  const int32_t above = static_cast<int32_t>(high) >> 31;
  const float fraction = fused(to_float(static_cast<int32_t>(low)), 0x1p-8f, 0x1p-9f);
  const float x = add(to_float(static_cast<int32_t>(high)), fraction);
  const float scaled = multiply(x, 0x1p-32f);
  const float u = add(scaled, from_bits(above & to_bits(1.0f)));

  // u = 2^k·(1 + f) with 1 + f in [√½, √2). k is 0 only above √½, where f is u − 1 itself.
  const int32_t k = (to_bits(u) - to_bits(0x1.6a09e6p-1f)) >> 23;
  const float mantissa = from_bits(to_bits(u) - k * (1 << 23));
  const float f = select(k >> 31, add(mantissa, -1.0f), scaled);

  // −2·ln(1 + f) = f²·p(f) − 2·f. All polynomials here are our own minimax fits with rounded coefficients.
  float p = 0x1.403182p-3f;
  p = fused(p, f, -0x1.09b208p-2f);
  p = fused(p, f, 0x1.0e409cp-2f);
  p = fused(p, f, -0x1.222c98p-2f);
  p = fused(p, f, 0x1.543ee4p-2f);
  p = fused(p, f, -0x1.99a7f4p-2f);
  p = fused(p, f, 0x1.0003a6p-1f);
  p = fused(p, f, -0x1.555548p-1f);
  p = fused(p, f, 0x1.fffffap-1f);
  const float of_mantissa = fused(multiply(f, f), p, multiply(f, -2.0f));
  return root(fused(to_float(k), -0x1.62e430p+0f, of_mantissa));
}

// Two independent normal variates by Box and Muller: `first` and the low byte of `second` make the radius,
// the upper 24 bits of `second` the angle: sign, sign, swap (the octant), then 21 bits within an octant.
POM_HD Pair normals_from(uint32_t first, uint32_t second) {
  const float radius = radius_from(first, second & 0xFFu);

  const int32_t steps = static_cast<int32_t>((second >> 8) & 0x1FFFFFu);
  const float phi = fused(to_float(steps), 0x1.921fb6p-22f, 0x1.921fb6p-23f);  // π/4·(steps + ½)/2^21
  const float t = multiply(phi, phi);
  float s = -0x1.9956b6p-13f;
  s = fused(s, t, 0x1.11077ep-7f);
  s = fused(s, t, -0x1.555546p-3f);
  const float sine = fused(multiply(s, t), phi, phi);
  float c = 0x1.99e0e4p-16f;
  c = fused(c, t, -0x1.6c0c1ap-10f);
  c = fused(c, t, 0x1.55554ap-5f);
  c = fused(c, t, -0.5f);
  const float cosine = fused(c, t, 1.0f);

  const int32_t swap = -static_cast<int32_t>((second >> 29) & 1u);
  const int32_t sign_a = static_cast<int32_t>(second & 0x80000000u);
  const int32_t sign_b = static_cast<int32_t>((second << 1) & 0x80000000u);
  const float along = multiply(radius, cosine), across = multiply(radius, sine);
  return {from_bits(to_bits(select(swap, across, along)) ^ sign_a),
          from_bits(to_bits(select(swap, along, across)) ^ sign_b)};
}

POM_HD Four normals_from(Words words) {
  const Pair ab = normals_from(words.a, words.b), cd = normals_from(words.c, words.d);
  return {ab.a, ab.b, cd.a, cd.b};
}

POM_HD Four uniforms_from(Words words) {
  return {uniform_from(words.a), uniform_from(words.b), uniform_from(words.c), uniform_from(words.d)};
}

}  // namespace pom::noise_math
