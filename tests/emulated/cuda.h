// Included before anything else by every .cu that is compiled for the emulation: CUDA's own headers as a host
// compiler sees them, and what nvcc would add.
#pragma once

#include "tests/emulated/machine.h"
#include "tests/emulated/ptx.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <type_traits>
#include <vector_functions.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#undef __grid_constant__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ emulated_shared
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define __CUDA_ARCH_LIST__ 900
#define POM_EMULATED 1

inline constexpr ::emulated::Coordinates<uint3, ::emulated::thread_index> threadIdx{};
inline constexpr ::emulated::Coordinates<uint3, ::emulated::block_index> blockIdx{};
inline constexpr ::emulated::Coordinates<dim3, ::emulated::block_size> blockDim{};
inline constexpr ::emulated::Coordinates<dim3, ::emulated::grid_size> gridDim{};

// ---- what a warp does together ----

inline void __syncthreads() {
  ::emulated::sync_block(0, 0);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  ::emulated::sync_warp(mask);
}
template <class T>
T emulated_exchange(unsigned mask, T value, int from) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = ::emulated::exchange(mask, bits, from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
// Of segments of `width` lanes, a power of two.
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32) {
  const int lane = ::emulated::lane(), from = lane ^ other;
  return emulated_exchange(mask, value, from / width <= lane / width ? from : 32);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  return emulated_exchange(mask, value, ::emulated::lane() / width * width + (from & (width - 1)));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ::emulated::lane(), from = lane - static_cast<int>(by);
  return emulated_exchange(mask, value, from < lane / width * width ? 32 : from);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = ::emulated::lane(), from = lane + static_cast<int>(by);
  return emulated_exchange(mask, value, from < (lane / width + 1) * width ? from : 32);
}

// ---- single instructions ----

inline size_t __cvta_generic_to_shared(const void* p) {
  return ::emulated::shared_address(p);
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  ::emulated::yield();
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
template <class T>
void __stcg(T* p, T value) {
  *p = value;
}
template <class To, class From>
To emulated_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &value, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float x) {
  return emulated_bits<unsigned>(x);
}
inline int __float_as_int(float x) {
  return emulated_bits<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return emulated_bits<float>(x);
}
inline float __int_as_float(int x) {
  return emulated_bits<float>(x);
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x) {
  return static_cast<float>(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline double rsqrt(double x) {
  return 1.0 / std::sqrt(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float __saturatef(float x) {
  return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a & 0xffff0000u, b & 0xffff0000u);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  unsigned word = 0;
  for (int i = 0; i < 4; ++i)
    word |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return word;
}
inline void __nanosleep(unsigned) {
  ::emulated::yield();
}
inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() {
  __builtin_trap();
}
inline long long clock64() {
  return 0;
}

template <class T>
T atomicAdd(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = old + value;
  return old;
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = std::max(old, value);
  return old;
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = value;
  return old;
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T old = *p;
  if (old == expected) *p = value;
  return old;
}

template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr auto min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return C(b) < C(a) ? C(b) : C(a);
}
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr auto max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return C(a) < C(b) ? C(b) : C(a);
}

// ---- launches ----

template <class... P, class... A>
cudaError_t emulated_launch(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... arguments) {
  ::emulated::Shape shape{config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream, 1};
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      shape.cluster = config->attrs[i].val.clusterDim.x;
  return ::emulated::start(shape, kernel, static_cast<P>(arguments)...);
}
#define cudaLaunchKernelEx emulated_launch

template <class... P>
cudaError_t cudaFuncSetAttribute(void (*)(P...), cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveClusters(int* count, void (*kernel)(P...),
                                           const cudaLaunchConfig_t* config) {
  return ::cudaOccupancyMaxActiveClusters(count, reinterpret_cast<const void*>(kernel), config);
}
