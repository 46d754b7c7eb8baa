// Gated norms of wide rows. Forward a warp takes a row, so that none waits for another. Backward, on Hopper,
// the sums over rows need a block's registers: a block takes row after row, a thread four columns of each.
// The copy engine brings the rows to come into a ring of slots in shared memory, so that memory works on
// while the block waits for its sums; a slot is filled again after the sum of its row: then all threads have
// read it. Rows are dealt out to warps and blocks, so that what is read at a time lies together.
#pragma once

#include <algorithm>

#include "pom/kernels/common/launch.cuh"
#include "pom/kernels/common/row_teams.cuh"
#include "pom/kernels/portable/gated_norm.h"
#include "pom/kernels/sm90/hopper.cuh"

namespace pom::kernels {

template <class X, class Y>
struct GatedNorm {
  Rows rows;
  const X *x, *dsum;  // backward: x is the sum
  const Y *y, *dout;
  const float *gate, *scale, *shift, *bias, *mean, *rstd;
  X *sum, *dx;
  Y *out, *dy;  // backward: out is the norm's result once more
  float *new_mean, *new_rstd;
  float *dgate, *dscale, *dshift, *dsums;  // (B, parts, d); the last are of the sum's gradient
  float base, eps;
};

constexpr int kWideThreads = 512, kMostSlots = 8, kWideColumns = 4;
constexpr int64_t kWideFrom = 384;

inline bool wide_rows(const RowSizes& s) {
  return s.width > kWideFrom && s.width <= kWideColumns * kWideThreads && s.width % 8 == 0;
}
// Parts of the sums over rows, of the sizes alone: no more blocks than 132 processors hold at once, three of
// up to 320 threads each.
inline int gated_parts(const RowSizes& s) {
  const int64_t blocks = 132 * (s.width <= 1280 ? 3 : 2);
  return wide_rows(s) ? row_parts(s, blocks) : norm_parts(s);
}

// ---- forward ----

constexpr int kRowWarps = 8, kForwardBlocks = 264;

// A thread has four columns of every 128, up to `Vectors` times; the rows of gate, scale, shift and bias wait
// in shared memory.
template <class X, class Y, int Vectors>
__global__ void __launch_bounds__(32 * kRowWarps, Vectors <= 9 ? 2 : 1)
    wide_gated_norm_kernel(const GatedNorm<X, Y> a) {
  constexpr int V = kWideColumns;
  extern __shared__ uint4 row_words[];
  const Rows& r = a.rows;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int d = static_cast<int>(r.width);
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts;
  float* const gate = reinterpret_cast<float*>(row_words);
  float *const scale = gate + d, *const shift = scale + d, *const bias = shift + d;
  for (int c = static_cast<int>(threadIdx.x); c < d; c += 32 * kRowWarps) {
    gate[c] = a.base + a.gate[batch * d + c], scale[c] = 1.0f + a.scale[batch * d + c];
    shift[c] = a.shift[batch * d + c], bias[c] = a.bias ? a.bias[c] : 0.0f;
  }
  __syncthreads();
  const float width = static_cast<float>(d);
  const auto column = [&](int i) { return V * lane + 32 * V * i; };
  for (int64_t t = part * kRowWarps + warp; t < r.tokens; t += int64_t{kRowWarps} * r.parts) {
    const int64_t row = batch * r.tokens + t, at = row * d;
    Word<X, V> xs[Vectors] = {};
    Word<Y, V> ys[Vectors] = {};
#pragma unroll
    for (int i = 0; i < Vectors; ++i)
      if (column(i) < d) xs[i] = load<V>(a.x + at + column(i)), ys[i] = load<V>(a.y + at + column(i));
    float x[Vectors][V] = {}, sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      if (column(i) >= d) continue;
      float y[V], g[V], b[V];
      unpack<X, V>(xs[i], x[i]);
      unpack<Y, V>(ys[i], y);
      load_values<V>(gate + column(i), g), load_values<V>(bias + column(i), b);
#pragma unroll
      for (int v = 0; v < V; ++v)  // the norm is that of the sum as it is stored
        x[i][v] = raised(lowered<X>(fmaf(y[v] + b[v], g[v], x[i][v])));
      // Nothing reads it soon, unlike the result.
      __stcs(reinterpret_cast<Word<X, V>*>(a.sum + at + column(i)), pack<X, V>(x[i]));
      sum += (x[i][0] + x[i][1]) + (x[i][2] + x[i][3]);
    }
    const float mean = team_sum(sum, 32, nullptr) / width;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      if (column(i) >= d) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) x[i][v] -= mean, squares = fmaf(x[i][v], x[i][v], squares);
    }
    const float rstd = 1.0f / sqrtf(team_sum(squares, 32, nullptr) / width + a.eps);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      if (column(i) >= d) continue;
      float by[V], more[V];
      load_values<V>(scale + column(i), by), load_values<V>(shift + column(i), more);
#pragma unroll
      for (int v = 0; v < V; ++v) x[i][v] = fmaf(x[i][v] * rstd, by[v], more[v]);
      store_values<V>(a.out + at + column(i), x[i]);
    }
    if (lane == 0) a.new_mean[row] = mean, a.new_rstd[row] = rstd;
  }
}

// ---- backward ----

// Every stride-th row of some tensors from `first` on, `count` of them, one row of each tensor in a slot.
template <int Tensors>
struct RowRing {
  const uint8_t* from[Tensors];  // null: no such tensor
  int bytes[Tensors];            // of a row, multiples of 16
  uint64_t* full;                // a barrier for each slot
  uint8_t* memory;
  int slots, slot_bytes;
  int64_t first;
  int stride, count;
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ int64_t row(int turn) const {
    return first + static_cast<int64_t>(turn) * stride;
  }
  // With one of these rows, by one thread.
  __device__ __forceinline__ void fill(int into, int turn) const {
    if (turn >= count) return;
    const int64_t row = this->row(turn);
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < Tensors; ++i) all += from[i] ? bytes[i] : 0;
    hopper::barrier_expect(full + into, all);
    uint8_t* to = memory + into * slot_bytes;
#pragma unroll
    for (int i = 0; i < Tensors; to += bytes[i], ++i)
      if (from[i]) hopper::load_bytes(to, from[i] + row * bytes[i], bytes[i], full + into);
  }
  // By all threads.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < slots; ++i) hopper::barrier_init(full + i, 1);
      hopper::barriers_ready();
      for (int i = 0; i < slots; ++i) fill(i, i);
    }
    __syncthreads();
  }
  // The next row, when it is there.
  __device__ __forceinline__ const uint8_t* next() {
    hopper::barrier_wait(full + slot, parity);
    const uint8_t* const row = memory + slot * slot_bytes;
    if (++slot == slots) slot = 0, parity ^= 1;
    return row;
  }
};
__device__ __forceinline__ uint8_t* ring_memory() {
  extern __shared__ uint4 ring_words[];
  return reinterpret_cast<uint8_t*>(ring_words);
}

template <class X, class Y, bool Again>
__global__ void __launch_bounds__(kWideThreads, 2)
    wide_gated_norm_backward_kernel(const GatedNorm<X, Y> a, int slots, int slot_bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int V = kWideColumns;
  __shared__ float shared[BlockSums::kFloats];
  __shared__ uint64_t full[kMostSlots];
  BlockSums add_up{shared};
  const Rows& r = a.rows;
  const int member = static_cast<int>(threadIdx.x), c = V * member, d = static_cast<int>(r.width);
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts;
  const int count = static_cast<int>((r.tokens - part + r.parts - 1) / r.parts);
  const bool inside = c < d;
  const float inverse_width = 1.0f / static_cast<float>(d);
  const int of_x = d * static_cast<int>(sizeof(X)), of_y = d * static_cast<int>(sizeof(Y));
  const auto bytes = [](const void* p) { return static_cast<const uint8_t*>(p); };
  RowRing<4> ring{{bytes(a.x), bytes(a.dsum), bytes(a.dout), bytes(a.y)},
                  {of_x, of_x, of_y, of_y},
                  full,
                  ring_memory(),
                  slots,
                  slot_bytes,
                  batch * r.tokens + part,
                  r.parts,
                  count};
  ring.begin();
  float gate[1][V], scale[1][V], shift[1][V];
  load_row<V, 1>(r, a.gate + batch * d, member, a.base, gate);
  load_row<V, 1>(r, a.scale + batch * d, member, 1.0f, scale);
  if constexpr (Again) load_row<V, 1>(r, a.shift + batch * d, member, 0.0f, shift);
  float dgate[V] = {}, dscale[V] = {}, dshift[V] = {}, dsums[V] = {};
  const auto moments = [&](int turn) { return Moments{a.mean[ring.row(turn)], a.rstd[ring.row(turn)]}; };
  Moments ahead = count > 0 ? moments(0) : Moments{};
  for (int i = 0; i < count; ++i) {
    const Moments m = ahead;
    if (i + 1 < count) ahead = moments(i + 1);
    const int64_t at = ring.row(i) * d + c;
    const int slot = ring.slot;
    const uint8_t* const here = ring.next();
    float x[V] = {}, dx[V] = {}, y[V] = {}, direct[V] = {};
    if (inside) {
      load_values<V>(reinterpret_cast<const X*>(here) + c, x);
      if (a.dsum) load_values<V>(reinterpret_cast<const X*>(here + of_x) + c, direct);
      load_values<V>(reinterpret_cast<const Y*>(here + 2 * of_x) + c, dx);
      load_values<V>(reinterpret_cast<const Y*>(here + 2 * of_x + of_y) + c, y);
    }
    float2 sums = make_float2(0, 0);
    differentiate_norm<V>(m, scale[0], x, dx, dscale, dshift, sums);
    if constexpr (Again) {
      float again[V];
#pragma unroll
      for (int v = 0; v < V; ++v) again[v] = fmaf(x[v], scale[0][v], shift[0][v]);
      if (inside) store_values<V>(a.out + at, again);
    }
    hopper::reads_done();
    sums = add_up(sums);
    if (member == 0) ring.fill(slot, i + slots);
    if (!inside) continue;
    const float of_d = sums.x * inverse_width, of_dx = sums.y * inverse_width;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      dx[v] = fmaf(m.rstd, dx[v] - of_d - x[v] * of_dx, direct[v]);
      dgate[v] = fmaf(dx[v], y[v], dgate[v]);
      if constexpr (Again) dsums[v] += dx[v];
      y[v] = dx[v] * gate[0][v];
    }
    store_values<V>(a.dx + at, dx);
    store_values<V>(a.dy + at, y);
  }
  if (!inside) return;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * d + c;
  store_values<V>(a.dgate + at, dgate);
  store_values<V>(a.dscale + at, dscale);
  store_values<V>(a.dshift + at, dshift);
  if constexpr (Again) store_values<V>(a.dsums + at, dsums);
#else
  __trap();
#endif
}

// Calls f.template operator()<Vectors>() for as many as the width needs, or some more.
template <class F>
cudaError_t with_wide(int64_t width, const F& f) {
  constexpr int64_t kOne = 32 * kWideColumns;
  if (width <= 6 * kOne) return f.template operator()<6>();
  if (width <= 9 * kOne) return f.template operator()<9>();
  return f.template operator()<kWideColumns * kWideThreads / kOne>();
}

template <class X, class Y>
bool takes_wide(const RowSizes& s, const GatedNorm<X, Y>& a, bool backward) {
  if (!wide_rows(s) || (backward && !(built_to_wait() && device_capability() == 90))) return false;
  for (const void* p :
       {static_cast<const void*>(a.x), static_cast<const void*>(a.dsum), static_cast<const void*>(a.y),
        static_cast<const void*>(a.dout), static_cast<const void*>(a.sum), static_cast<const void*>(a.dx),
        static_cast<const void*>(a.out), static_cast<const void*>(a.dy), static_cast<const void*>(a.dgate),
        static_cast<const void*>(a.dscale), static_cast<const void*>(a.dshift),
        static_cast<const void*>(a.dsums)})
    if (!aligned(p, 16)) return false;
  return true;
}

template <class X, class Y>
cudaError_t launch_wide(const RowSizes& s, GatedNorm<X, Y> a, cudaStream_t stream) {
  const int64_t most = (s.tokens + kRowWarps - 1) / kRowWarps,
                enough = (kForwardBlocks + s.batch - 1) / s.batch;
  a.rows = rows_of(s, kWideColumns, static_cast<int>(std::min(most, enough)));
  if (s.batch * a.rows.parts > INT32_MAX) return cudaErrorInvalidValue;
  return with_wide(s.width, [&]<int Vectors>() {
    const size_t shared = 4 * static_cast<size_t>(s.width) * sizeof(float);
    wide_gated_norm_kernel<X, Y, Vectors>
        <<<static_cast<unsigned>(s.batch * a.rows.parts), 32 * kRowWarps, shared, stream>>>(a);
    return cudaGetLastError();
  });
}

template <class X, class Y>
cudaError_t launch_wide_backward(const RowSizes& s, GatedNorm<X, Y> a, cudaStream_t stream) {
  constexpr int kShared = 64 << 10;  // for the slots of a block: three fit into a processor
  a.rows = rows_of(s, kWideColumns, gated_parts(s));
  if (s.batch * a.rows.parts > INT32_MAX) return cudaErrorInvalidValue;
  const auto kernel =
      a.out ? wide_gated_norm_backward_kernel<X, Y, true> : wide_gated_norm_backward_kernel<X, Y, false>;
  const int slot_bytes = static_cast<int>(2 * s.width * int64_t{sizeof(X) + sizeof(Y)});
  const int shared = std::min(kMostSlots, kShared / slot_bytes) * slot_bytes;
  if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
      e != cudaSuccess)
    return e;
  kernel<<<static_cast<unsigned>(s.batch * a.rows.parts), static_cast<unsigned>(a.rows.team),
           static_cast<unsigned>(shared), stream>>>(a, shared / slot_bytes, slot_bytes);
  return cudaGetLastError();
}

}  // namespace pom::kernels
