// The masked mixer where slots have several tokens: rows look up the sums of their slot. Each kernel is one
// pass over its tensors; a thread walks the rows of a piece, all of one slot.
#include <initializer_list>

#include "pom/kernels/portable/masked_threads.cuh"

namespace pom::kernels::masked {
namespace {

// ---- the context ----

template <class T>
struct Context {
  Cut cut;
  int64_t D;
  int order;
  const T* ho;
  T* dho;
  const float* dsums;  // (runs, kD)
  float* sums;         // (pieces, kD); of dho it may be null
};

template <class T, int K, int V>
__global__ void __launch_bounds__(kPieceThreads) powers_kernel(const Context<T> a) {
  constexpr int U = kUnrolled<K>;
  const int k = K == kMaxMixerOrder ? a.order : K;
  const Spot s = spot_of<V, kPieceThreads>(a.D);
  if (!s.active) return;
  const Piece p = piece_at(a.cut, s.piece);
  const int64_t kD = k * a.D;
  const T* ho = a.ho + p.first_row * kD + s.column;
  float sums[K][V] = {};
  for (int t = 0; t < p.count; t += U) {
    Word<T, V> words[U][K];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u < p.count) load_degrees<K, V>(ho + (t + u) * kD, a.D, k, words[u]);
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u < p.count) add_powers<T, K, V>(words[u], k, sums);
  }
  store_sums<K, V>(a.sums + s.piece * kD + s.column, a.D, k, sums);
}

template <class T, int K, int V>
__global__ void __launch_bounds__(kPieceThreads) context_backward_kernel(const Context<T> a) {
  constexpr int U = (kUnrolled<K> + 1) / 2;
  const int k = K == kMaxMixerOrder ? a.order : K;
  const Spot s = spot_of<V, kPieceThreads>(a.D);
  if (!s.active) return;
  const Piece p = piece_at(a.cut, s.piece);
  const int64_t kD = k * a.D, start = p.first_row * kD + s.column;
  float d[K][V], sums[K][V] = {};
  load_sums<K, V>(a.dsums + p.run * kD + s.column, a.D, k, d);
  for (int t = 0; t < p.count; t += U) {
    Word<T, V> words[U][K];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u < p.count) load_degrees<K, V>(a.ho + start + (t + u) * kD, a.D, k, words[u]);
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u < p.count) store_gradient<T, K, V>(words[u], d, k, a.dho + start + (t + u) * kD, a.D, sums);
  }
  if (a.sums) store_sums<K, V>(a.sums + s.piece * kD + s.column, a.D, k, sums);
}

template <class T>
Context<T> context_of(const Cut& cut, const Sizes& s, const void* ho) {
  Context<T> a{};
  a.cut = cut, a.D = s.D, a.order = s.order, a.ho = static_cast<const T*>(ho);
  return a;
}

// ---- the gate ----

template <class T>
struct Gate {
  Cut cut;
  Seen seen;
  int64_t columns;
  const T *dout, *se;
  const float* sums;  // (slots, columns)
  T *out, *dse;
  float *dsums, *dse_sums;  // (pieces, columns)
};

// One over the number of tokens that a piece's queries see.
__device__ __forceinline__ float share_of(const Seen& seen, const Piece& p) {
  int64_t tokens;
  if (seen.causal) {
    const int64_t block = seen.keys.run, end = min((p.run_number + 1) * block, p.length);
    const int64_t first = seen.window ? p.run_number + 1 - seen.window : 0;
    tokens = end - max(first, static_cast<int64_t>(0)) * block;
  } else {
    tokens = sequence_at(seen.keys, p.sequence).length;
  }
  return 1.0f / static_cast<float>(tokens);
}

template <class T, int V>
__global__ void __launch_bounds__(kPieceThreads) gate_kernel(const Gate<T> a) {
  constexpr int U = 4;
  const Spot s = spot_of<V, kPieceThreads>(a.columns);
  if (!s.active) return;
  const Piece p = piece_at(a.cut, s.piece);
  const float share = share_of(a.seen, p);
  const int64_t start = p.first_row * a.columns + s.column;
  float H[V];
#pragma unroll
  for (int v = 0; v < V; ++v) H[v] = a.sums[p.run * a.columns + s.column + v] * share;
  for (int t = 0; t < p.count; t += U) {
    Word<T, V> words[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u < p.count) words[u] = load<V>(a.se + start + (t + u) * a.columns);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u >= p.count) break;
      float x[V];
      unpack<T, V>(words[u], x);
#pragma unroll
      for (int v = 0; v < V; ++v) x[v] = sigmoid<T>(x[v]) * H[v];
      store_values<V>(a.out + start + (t + u) * a.columns, x);
    }
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kPieceThreads) gate_backward_kernel(const Gate<T> a) {
  constexpr int U = 2;
  const Spot s = spot_of<V, kPieceThreads>(a.columns);
  if (!s.active) return;
  const Piece p = piece_at(a.cut, s.piece);
  const float share = share_of(a.seen, p);
  const int64_t start = p.first_row * a.columns + s.column;
  float H[V], dsums[V] = {}, dse_sums[V] = {};
#pragma unroll
  for (int v = 0; v < V; ++v) H[v] = a.sums[p.run * a.columns + s.column + v] * share;
  for (int t = 0; t < p.count; t += U) {
    Word<T, V> douts[U], ses[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u < p.count) {
        douts[u] = load<V>(a.dout + start + (t + u) * a.columns);
        ses[u] = load<V>(a.se + start + (t + u) * a.columns);
      }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u >= p.count) break;
      const int64_t at = start + (t + u) * a.columns;
      float dout[V], x[V], gated[V];
      unpack<T, V>(douts[u], dout);
      unpack<T, V>(ses[u], x);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float gate = sigmoid<T>(x[v]);
        gated[v] = gate * H[v];
        dsums[v] = fmaf(dout[v], gate, dsums[v]);
        x[v] = dout[v] * gated[v] * (1.0f - gate);
        dse_sums[v] += x[v];
      }
      store_values<V>(a.dse + at, x);
      if (a.out) store_values<V>(a.out + at, gated);
    }
  }
  const int64_t row = s.piece * a.columns + s.column;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    a.dsums[row + v] = dsums[v] * share;
    if (a.dse_sums) a.dse_sums[row + v] = dse_sums[v];
  }
}

template <class T>
Gate<T> gate_of(const Cut& cut, const Sizes& s, const Seen& seen, const void* se, const float* sums) {
  Gate<T> a{};
  a.cut = cut, a.seen = seen, a.columns = s.columns(), a.se = static_cast<const T*>(se), a.sums = sums;
  return a;
}

}  // namespace

cudaError_t sum_powers(const Cut& cut, const Sizes& sizes, const void* ho, float* out, cudaStream_t stream) {
  if (cut.pieces == 0) return cudaSuccess;
  return with_degrees(sizes, {ho}, [&](auto zero, auto degrees, auto columns) {
    constexpr int K = decltype(degrees)::value, V = decltype(columns)::value;
    auto a = context_of<decltype(zero)>(cut, sizes, ho);
    a.sums = out;
    unsigned blocks;
    if (!grid_of<V, kPieceThreads>(cut.pieces, sizes.D, blocks)) return cudaErrorInvalidValue;
    powers_kernel<decltype(zero), K, V><<<blocks, kPieceThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t slot_context_backward(const Cut& keys, const Sizes& sizes, const SlotContextBackward& p,
                                  cudaStream_t stream) {
  if (keys.pieces == 0) return cudaSuccess;
  return with_degrees(sizes, {p.ho, p.dho}, [&](auto zero, auto degrees, auto columns) {
    constexpr int K = decltype(degrees)::value, V = decltype(columns)::value;
    auto a = context_of<decltype(zero)>(keys, sizes, p.ho);
    a.dho = static_cast<decltype(zero)*>(p.dho), a.dsums = p.dsums, a.sums = p.dho_sums;
    unsigned blocks;
    if (!grid_of<V, kPieceThreads>(keys.pieces, sizes.D, blocks)) return cudaErrorInvalidValue;
    context_backward_kernel<decltype(zero), K, V><<<blocks, kPieceThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t slot_gate(const Cut& queries, const Sizes& sizes, const Seen& seen, const SlotGate& p,
                      cudaStream_t stream) {
  if (queries.pieces == 0) return cudaSuccess;
  return with_columns(sizes, {p.se, p.out}, [&](auto zero, auto columns) {
    constexpr int V = decltype(columns)::value;
    auto a = gate_of<decltype(zero)>(queries, sizes, seen, p.se, p.sums);
    a.out = static_cast<decltype(zero)*>(p.out);
    unsigned blocks;
    if (!grid_of<V, kPieceThreads>(queries.pieces, a.columns, blocks)) return cudaErrorInvalidValue;
    gate_kernel<decltype(zero), V><<<blocks, kPieceThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t slot_gate_backward(const Cut& queries, const Sizes& sizes, const Seen& seen,
                               const SlotGateBackward& p, cudaStream_t stream) {
  if (queries.pieces == 0) return cudaSuccess;
  return with_columns(sizes, {p.dout, p.se, p.dse, p.gated}, [&](auto zero, auto columns) {
    constexpr int V = decltype(columns)::value;
    using T = decltype(zero);
    auto a = gate_of<T>(queries, sizes, seen, p.se, p.sums);
    a.dout = static_cast<const T*>(p.dout), a.dse = static_cast<T*>(p.dse), a.out = static_cast<T*>(p.gated);
    a.dsums = p.dsums, a.dse_sums = p.dse_sums;
    unsigned blocks;
    if (!grid_of<V, kPieceThreads>(queries.pieces, a.columns, blocks)) return cudaErrorInvalidValue;
    gate_backward_kernel<T, V><<<blocks, kPieceThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace pom::kernels::masked
