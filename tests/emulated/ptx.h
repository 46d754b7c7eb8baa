// The instructions that our kernels name in asm statements, one function each: translate.py writes the calls,
// with the dots of a name as underscores and the operands in the order of the instruction (of several
// instructions in one statement: in the order of its constraints). An instruction that is not here does not
// compile.
#pragma once

#include "tests/emulated/machine.h"
#include <chrono>
#include <cmath>
#include <cstring>
#include <cuda_fp8.h>

namespace emulated::ptx {

template <class T>
const void* pointer(T p) {
  if constexpr (std::is_pointer_v<T>)
    return p;
  else
    return reinterpret_cast<const void*>(static_cast<uintptr_t>(p));
}

// ---- arithmetic ----

inline void rcp_approx_ftz_f32(float& y, float x) {
  y = 1.0f / x;
}
inline void ex2_approx_ftz_f32(float& y, float x) {
  y = std::exp2(x);
  if (std::fabs(y) < 1.17549435e-38f) y = 0;
}
// As coarse as the hardware's: 2^-11 of the value.
inline void tanh_approx_f32(float& y, float x) {
  y = std::tanh(x);
  uint32_t bits;
  std::memcpy(&bits, &y, 4);
  bits = (bits + (1u << 11)) & ~((1u << 12) - 1);
  std::memcpy(&y, &bits, 4);
}
inline void cvt_rn_satfinite_e4m3x2_f32__cvt_rn_satfinite_e4m3x2_f32__mov_b32(uint32_t& word, float a,
                                                                              float b, float c, float d) {
  const auto byte = [](float x) { return uint32_t{__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)}; };
  word = byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24;
}

// ---- memory ----

template <class P>
void ld_global_L1_no_allocate_v4_f32(float& a, float& b, float& c, float& d, P from) {
  const float* p = static_cast<const float*>(pointer(from));
  a = p[0], b = p[1], c = p[2], d = p[3];
}
template <class P>
void ld_relaxed_gpu_global_v4_b32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, P from) {
  yield();
  const uint32_t* p = static_cast<const uint32_t*>(pointer(from));
  a = p[0], b = p[1], c = p[2], d = p[3];
}
template <class P>
void ld_relaxed_gpu_global_v2_b32(uint32_t& a, uint32_t& b, P from) {
  yield();
  const uint32_t* p = static_cast<const uint32_t*>(pointer(from));
  a = p[0], b = p[1];
}
template <class T, class P>
void read_late(T& value, P from) {
  yield();
  std::memcpy(&value, pointer(from), sizeof value);
}
template <class P>
void ld_relaxed_gpu_global_b32(uint32_t& value, P from) {
  read_late(value, from);
}
template <class P>
void ld_relaxed_gpu_global_u64(uint64_t& value, P from) {
  read_late(value, from);
}
template <class T, class P>
void ld_acquire_gpu_global_s32(T& value, P from) {
  read_late(value, from);
}
template <class T, class P>
void ld_acquire_gpu_global_u32(T& value, P from) {
  read_late(value, from);
}
template <class T, class P>
void ld_acquire_gpu_global_b32(T& value, P from) {
  read_late(value, from);
}
template <class P>
void st_relaxed_gpu_global_b32(P to, uint32_t value) {
  std::memcpy(const_cast<void*>(pointer(to)), &value, 4);
}
template <class P>
void st_release_gpu_global_b32(P to, uint32_t value) {
  std::memcpy(const_cast<void*>(pointer(to)), &value, 4);
}
template <class P>
void st_release_gpu_global_s32(P to, int value) {
  std::memcpy(const_cast<void*>(pointer(to)), &value, 4);
}
template <class P>
void st_relaxed_gpu_global_b16(P to, uint16_t value) {
  std::memcpy(const_cast<void*>(pointer(to)), &value, 2);
}
template <class P>
void st_relaxed_gpu_global_u64(P to, uint64_t value) {
  std::memcpy(const_cast<void*>(pointer(to)), &value, 8);
}
template <class P>
void red_relaxed_gpu_global_add_v2_f32(P to, float x, float y) {
  float* p = static_cast<float*>(const_cast<void*>(pointer(to)));
  p[0] += x, p[1] += y;
}
template <class P>
void red_relaxed_gpu_global_add_v4_f32(P to, float x, float y, float z, float w) {
  float* p = static_cast<float*>(const_cast<void*>(pointer(to)));
  p[0] += x, p[1] += y, p[2] += z, p[3] += w;
}
template <class P>
void red_release_gpu_global_add_s32(P to) {
  ++*static_cast<int*>(const_cast<void*>(pointer(to)));
}
template <class P>
void prefetch_global_L2(P) {}
template <class P>
void prefetch_tensormap(P) {}

// ---- fences and the order of kernels: here everything is seen at once, and one kernel follows another ----

inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}
inline void fence_mbarrier_init_release_cluster() {}
inline void fence_proxy_async_shared_cta() {}
inline void fence_proxy_async_global() {}
template <class P>
void fence_proxy_tensormap_generic_acquire_sys(P) {}
inline void setmaxnreg_inc_sync_aligned_u32(int) {}
inline void setmaxnreg_dec_sync_aligned_u32(int) {}
inline void createpolicy_fractional_L2_evict_first_b64(uint64_t& policy) {
  policy = 1;
}
inline void createpolicy_fractional_L2_evict_normal_b64(uint64_t& policy) {
  policy = 0;
}
template <class T>
void mov_u64_globaltimer(T& now) {
  now = static_cast<T>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// ---- barriers and clusters ----

inline void mbarrier_init_shared_cta_b64(uint32_t barrier, uint32_t arrivals) {
  barrier_init(barrier, arrivals);
}
inline void mbarrier_arrive_shared_cta_b64(uint32_t barrier) {
  barrier_arrive(barrier, cluster_rank(), 0);
}
inline void mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t barrier, uint32_t bytes) {
  barrier_arrive(barrier, cluster_rank(), bytes);
}
inline void mbarrier_try_wait_parity_shared_cta_b64(uint32_t barrier, uint32_t parity) {
  barrier_wait(barrier, parity);
}
inline void mapa_shared_cluster_u32__mbarrier_arrive_shared_cluster_b64(uint32_t barrier, uint32_t block) {
  barrier_arrive(barrier, block, 0);
}
inline void bar_sync(int id, int threads) {
  sync_block(id, threads);
}
inline void bar_arrive(int id, int threads) {
  arrive_block(id, threads);
}
inline void mov_u32_cluster_ctarank(uint32_t& rank) {
  rank = cluster_rank();
}
inline void barrier_cluster_arrive_relaxed_aligned__barrier_cluster_wait_acquire_aligned() {
  sync_cluster();
}

// ---- copies ----

template <class P>
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, P from, uint32_t bytes,
                                                                    uint32_t barrier) {
  copy_bytes(to, pointer(from), bytes, barrier);
}
template <class P>
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(uint32_t to, P from,
                                                                                  uint32_t bytes,
                                                                                  uint32_t barrier,
                                                                                  uint64_t) {
  copy_bytes(to, pointer(from), bytes, barrier);
}
template <class P>
const Map& map_at(P p) {
  return *static_cast<const Map*>(pointer(p));
}
template <class P>
void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, P map, int x,
                                                                              int y, uint32_t barrier) {
  copy_box(map_at(map), to, barrier, {x, y, 0, 0, 0}, 1u << cluster_rank());
}
template <class P>
void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    uint32_t to, P map, int x, int y, uint32_t barrier, uint16_t blocks) {
  copy_box(map_at(map), to, barrier, {x, y, 0, 0, 0}, blocks);
}
template <class P>
void cp_async_bulk_tensor_5d_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, P map, int x,
                                                                              int y, int z, int v, int w,
                                                                              uint32_t barrier) {
  copy_box(map_at(map), to, barrier, {x, y, z, v, w}, 1u << cluster_rank());
}
template <class P>
void cp_async_bulk_tensor_5d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    uint32_t to, P map, int x, int y, int z, int v, int w, uint32_t barrier, uint16_t blocks) {
  copy_box(map_at(map), to, barrier, {x, y, z, v, w}, blocks);
}
inline void
mapa_shared_cluster_u32__mapa_shared_cluster_u32__st_async_weak_shared_cluster_mbarrier_complete_tx_bytes_u32(
    uint32_t to, uint32_t word, uint32_t barrier, uint32_t block) {
  std::memcpy(shared_memory(to, block), &word, 4);
  barrier_complete(barrier, block, 4);
}
template <class P>
void cp_async_cg_shared_global_L2_128B(uint32_t to, P from, int inside) {
  copy_line(to, pointer(from), 16, inside);
}
inline void cp_async_commit_group() {
  commit_lines();
}
inline void cp_async_wait_group(int pending) {
  wait_lines(pending);
}

// ---- products ----

inline void wgmma_fence_sync_aligned() {}
inline void wgmma_commit_group_sync_aligned() {
  commit_products();
}
inline void wgmma_wait_group_sync_aligned(int pending) {
  wait_products(pending);
}

#define POM_EMULATED_PRODUCT(N)                                                                      \
  template <class... T>                                                                              \
  void setp_ne_b32__wgmma_mma_async_sync_aligned_m64n##N##k16_f32_bf16_bf16(float& d, T&&... rest) { \
    wgmma<N>(d, Values::bf16, rest...);                                                              \
  }                                                                                                  \
  template <class... T>                                                                              \
  void setp_ne_b32__wgmma_mma_async_sync_aligned_m64n##N##k16_f32_f16_f16(float& d, T&&... rest) {   \
    wgmma<N>(d, Values::fp16, rest...);                                                              \
  }                                                                                                  \
  template <class... T>                                                                              \
  void setp_ne_b32__wgmma_mma_async_sync_aligned_m64n##N##k32_f32_e4m3_e4m3(float& d, T&&... rest) { \
    wgmma<N>(d, Values::e4m3, rest...);                                                              \
  }
// The accumulators lie one after another; behind them are both matrices and whether the sum goes on.
template <int N, class... T>
void wgmma(float& d, Values values, T&... rest) {
  static_assert(sizeof...(rest) == N / 2 + 2);
  const auto all = std::tie(rest...);
  if (&std::get<N / 2 - 2>(all) != &d + N / 2 - 1) __builtin_trap();
  product(&d, std::get<N / 2 - 1>(all), std::get<N / 2>(all), std::get<N / 2 + 1>(all) != 0, N, values);
}
POM_EMULATED_PRODUCT(64)
POM_EMULATED_PRODUCT(96)
POM_EMULATED_PRODUCT(128)
POM_EMULATED_PRODUCT(144)
POM_EMULATED_PRODUCT(192)
POM_EMULATED_PRODUCT(256)
#undef POM_EMULATED_PRODUCT

// Of a warp: d (16, 8) = a (16, 16) b (16, 8) + c. Lane 4 g + q holds of a the pairs of columns 2 q and 2 q +
// 8 of rows g and g + 8, of b the same of column g, of c and d columns 2 q and 2 q + 1 of rows g and g + 8.
void warp_product(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                  Values values);
#define POM_EMULATED_MMA(NAME, VALUES)                                                                \
  inline void NAME(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, \
                   uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {   \
    float d[4];                                                                                       \
    warp_product(d, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}, VALUES);                            \
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];                                                       \
  }
POM_EMULATED_MMA(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, Values::bf16)
POM_EMULATED_MMA(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, Values::fp16)
#undef POM_EMULATED_MMA

}  // namespace emulated::ptx
