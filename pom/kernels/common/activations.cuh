// GELU and sigmoid on the GPU. Values stored in fp32 get the precise functions; those stored in 16 bits get
// short ones of about 1e-7, because with erff the arithmetic would take longer than the memory, and some of
// bf16 shorter ones, with the hardware's tanh.
#pragma once

#include <cuda_bf16.h>
#include <type_traits>

namespace pom::kernels {

__device__ __forceinline__ float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct Gelu {
  float value, slope;
};

// Abramowitz and Stegun 7.1.26 with x / sqrt(2) put in: epilogue = erfc(|x| / sqrt(2)) / 2, bell = exp(-x^2 /
// 2).
__device__ __forceinline__ float normal_tail(float x, float bell) {
  const float t = fast_reciprocal(fmaf(0.3275911f * 0.70710678f, fabsf(x), 1.0f));
  float p = fmaf(0.5f * 1.061405429f, t, 0.5f * -1.453152027f);
  p = fmaf(p, t, 0.5f * 1.421413741f);
  p = fmaf(p, t, 0.5f * -0.284496736f);
  p = fmaf(p, t, 0.5f * 0.254829592f);
  return p * t * bell;
}
__device__ __forceinline__ float bell_of(float x) {
  return fast_exp2(x * x * (-0.5f * 1.44269504f));
}

template <class T>
__device__ __forceinline__ float gelu(float x) {
  if constexpr (std::is_same_v<T, float>) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  return fmaf(-fabsf(x), normal_tail(x, bell_of(x)), fmaxf(x, 0.0f));
}

template <class T>
__device__ __forceinline__ Gelu gelu_and_slope(float x) {
  constexpr float kInverseRoot2Pi = 0.39894228f;
  if constexpr (std::is_same_v<T, float>) {
    const float below = 0.5f * (1.0f + erff(x * 0.70710678f));
    return {x * below, fmaf(x * kInverseRoot2Pi, expf(-0.5f * x * x), below)};
  }
  const float bell = bell_of(x), epilogue = normal_tail(x, bell);
  const float below = x < 0 ? epilogue : 1.0f - epilogue;
  return {fmaf(-fabsf(x), epilogue, fmaxf(x, 0.0f)), fmaf(x * kInverseRoot2Pi, bell, below)};
}

// 2 P(X < x) - 1 of a normal X as tanh(x p(x^2)), within 1.1e-4; the hardware's tanh adds up to 2^-11.
__device__ __forceinline__ float normal_tanh(float x) {
  const float t = fminf(x * x, 25.0f);
  return fast_tanh(x * fmaf(t, fmaf(t, -3.51596e-4f, 3.7006017e-2f), 0.79750756f));
}
// For the gradients of sums over tokens in bf16.
template <class T>
__device__ __forceinline__ Gelu summed_gelu_and_slope(float x) {
  if constexpr (!std::is_same_v<T, __nv_bfloat16>) return gelu_and_slope<T>(x);
  const float half = 0.5f * x, y = normal_tanh(x);
  return {fmaf(half, y, half), fmaf(0.39894228f * x, bell_of(x), fmaf(0.5f, y, 0.5f))};
}

// x (1 + tanh(x (kTanhGelu + kTanhGeluCube x^2))) / 2 is GELU within 3.3e-4.
constexpr float kTanhGelu = 0.799f, kTanhGeluCube = 0.03504f;

// For the other gradients of bf16: half the instructions. The slope is the exact one but for the same error
// of the normal distribution, since that of tanh would show beside 1.
template <class T>
__device__ __forceinline__ Gelu short_gelu_and_slope(float x) {
  if constexpr (!std::is_same_v<T, __nv_bfloat16>) return gelu_and_slope<T>(x);
  const float t = x * x, half = 0.5f * x, y = fast_tanh(x * fmaf(t, kTanhGeluCube, kTanhGelu));
  return {fmaf(half, y, half), fmaf(0.39894228f * x, bell_of(x), fmaf(0.5f, y, 0.5f))};
}

template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) return 1.0f / (1.0f + expf(-x));
  return fast_reciprocal(1.0f + fast_exp2(x * -1.44269504f));
}

}  // namespace pom::kernels
