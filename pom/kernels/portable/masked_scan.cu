// The masked mixer where every token is a slot: scans. A thread walks the rows of a piece with the running
// sums of its columns in registers, beginning with what the pieces before have summed.
//
// Under a window of w tokens a row also sees the end of the run before its own, which is w rows long: all
// that comes after the row w before it. Those ends are walked first, backward from the run's end, and kept in
// shared memory for the rows that follow. In the backward pass each row is seen by the rest of its own run
// and by the beginning of the next one.
#include <initializer_list>

#include "pom/kernels/portable/masked_threads.cuh"

namespace pom::kernels::masked {
namespace {

template <class T>
struct Scan {
  Cut cut;
  int64_t D;
  int order;
  const T *ho, *se, *dout;
  const float *before, *after;               // (pieces, kD) each, or null
  const float *g_sums, *g_before, *g_after;  // likewise
  T *out, *dse, *dho;
  float *dse_sums, *dho_sums;
};

// A float for each row of a piece and each value of a thread: at most 32 KiB of a block.
template <int K, int V>
constexpr int kScanThreads = K* V > 8 ? 32 : kPieceThreads;
template <int K, int V>
constexpr int kKept = kScanPiece* K* V* kScanThreads<K, V>;

template <int K, int V>
struct Kept {
  float* mine;
  __device__ float& at(int row, int i, int v) const {
    return mine[((row * K + i) * V + v) * kScanThreads<K, V>];
  }
};

// One over what a row sees.
__device__ __forceinline__ float share_of(const Cut& cut, int64_t token) {
  return 1.0f / static_cast<float>(min(token + 1, cut.run));
}

// What each row of a piece sees of the run before. Rows here are those `run` rows earlier, and a row's far
// end begins after it. That run is whole, and so may have more rows in the piece of this place.
template <class T, int K, int V>
__device__ __forceinline__ void keep_far_ends(const Scan<T>& a, const Piece& p, int64_t column, int k,
                                              const Kept<K, V>& kept) {
  constexpr int U = kUnrolled<K>;
  const int64_t kD = k * a.D, each = parts(a.cut.run, a.cut.piece);
  const int rows = static_cast<int>(min(a.cut.piece, a.cut.run - p.number * a.cut.piece));
  const T* ho = a.ho + (p.first_row - a.cut.run) * kD + column;
  float tail[K][V];
  load_sums<K, V>(a.after ? a.after + (p.index - each) * kD + column : nullptr, a.D, k, tail);
  for (int last = rows - 1; last >= 0; last -= U) {
    Word<T, V> words[U][K];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (last - u > 0) load_degrees<K, V>(ho + (last - u) * kD, a.D, k, words[u]);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int t = last - u;
      if (t < 0) break;
      if (t < p.count) {
#pragma unroll
        for (int i = 0; i < K; ++i)
#pragma unroll
          for (int v = 0; v < V; ++v) kept.at(t, i, v) = tail[i][v];
      }
      if (t > 0) add_powers<T, K, V>(words[u], k, tail);
    }
  }
}

template <class T, int K, int V, bool Window>
__global__ void __launch_bounds__(kScanThreads<K, V>) scan_kernel(const Scan<T> a) {
  constexpr int U = kUnrolled<K>, kThreads = kScanThreads<K, V>;
  __shared__ float shared[Window ? kKept<K, V> : 1];
  const int k = K == kMaxMixerOrder ? a.order : K;
  const Spot s = spot_of<V, kThreads>(a.D);
  if (!s.active) return;
  const Piece p = piece_at(a.cut, s.piece);
  const int64_t kD = k * a.D, start = p.first_row * kD + s.column;
  const Kept<K, V> kept{shared + threadIdx.x};
  const bool far = Window && p.run_number > 0;
  if constexpr (Window)
    if (far) keep_far_ends<T, K, V>(a, p, s.column, k, kept);
  float sums[K][V];
  load_sums<K, V>(a.before ? a.before + s.piece * kD + s.column : nullptr, a.D, k, sums);
  for (int t = 0; t < p.count; t += U) {
    Word<T, V> ho[U][K], se[U][K];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u < p.count) {
        load_degrees<K, V>(a.ho + start + (t + u) * kD, a.D, k, ho[u]);
        load_degrees<K, V>(a.se + start + (t + u) * kD, a.D, k, se[u]);
      }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u >= p.count) break;
      add_powers<T, K, V>(ho[u], k, sums);
      const float share = share_of(a.cut, p.token + t + u);
#pragma unroll
      for (int i = 0; i < K; ++i) {
        if (i >= k) break;
        float x[V];
        unpack<T, V>(se[u][i], x);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const float sum = far ? sums[i][v] + kept.at(t + u, i, v) : sums[i][v];
          x[v] = sigmoid<T>(x[v]) * (sum * share);
        }
        store_values<V>(a.out + start + (t + u) * kD + i * a.D, x);
      }
    }
  }
}

// ---- backward ----

// The sums of g = dout sigmoid(se) / what the row sees, over the rows of a piece.
template <class T, int V>
__global__ void __launch_bounds__(kPieceThreads) gate_sums_kernel(const Scan<T> a, float* out) {
  constexpr int U = 4;
  const int64_t columns = a.order * a.D;
  const Spot s = spot_of<V, kPieceThreads>(columns);
  if (!s.active) return;
  const Piece p = piece_at(a.cut, s.piece);
  const int64_t start = p.first_row * columns + s.column;
  float sums[V] = {};
  for (int t = 0; t < p.count; t += U) {
    Word<T, V> douts[U], ses[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u < p.count) {
        douts[u] = load<V>(a.dout + start + (t + u) * columns);
        ses[u] = load<V>(a.se + start + (t + u) * columns);
      }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u >= p.count) break;
      const float share = share_of(a.cut, p.token + t + u);
      float dout[V], x[V];
      unpack<T, V>(douts[u], dout);
      unpack<T, V>(ses[u], x);
#pragma unroll
      for (int v = 0; v < V; ++v) sums[v] += dout[v] * sigmoid<T>(x[v]) * share;
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) out[s.piece * columns + s.column + v] = sums[v];
}

// The gates of a piece's rows: dse and gated are stored, and g takes the place of what was kept.
template <class T, int K, int V>
__device__ __forceinline__ void gates_backward(const Scan<T>& a, const Piece& p, int64_t column, int k,
                                               bool far, const Kept<K, V>& kept) {
  constexpr int U = (kUnrolled<K> + 1) / 2;
  const int64_t kD = k * a.D, start = p.first_row * kD + column;
  float sums[K][V], dse_sums[K][V] = {};
  load_sums<K, V>(a.before ? a.before + p.index * kD + column : nullptr, a.D, k, sums);
  for (int t = 0; t < p.count; t += U) {
    Word<T, V> ho[U][K], se[U][K], douts[U][K];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u < p.count) {
        load_degrees<K, V>(a.ho + start + (t + u) * kD, a.D, k, ho[u]);
        load_degrees<K, V>(a.se + start + (t + u) * kD, a.D, k, se[u]);
        load_degrees<K, V>(a.dout + start + (t + u) * kD, a.D, k, douts[u]);
      }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u >= p.count) break;
      add_powers<T, K, V>(ho[u], k, sums);
      const float share = share_of(a.cut, p.token + t + u);
#pragma unroll
      for (int i = 0; i < K; ++i) {
        if (i >= k) break;
        float x[V], dout[V], gated[V];
        unpack<T, V>(se[u][i], x);
        unpack<T, V>(douts[u][i], dout);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          float& place = kept.at(t + u, i, v);
          const float gate = sigmoid<T>(x[v]), sum = far ? sums[i][v] + place : sums[i][v];
          gated[v] = gate * (sum * share);
          x[v] = dout[v] * gated[v] * (1.0f - gate);
          place = dout[v] * gate * share;
          dse_sums[i][v] += x[v];
        }
        store_values<V>(a.dse + start + (t + u) * kD + i * a.D, x);
        if (a.out) store_values<V>(a.out + start + (t + u) * kD + i * a.D, gated);
      }
    }
  }
  if (a.dse_sums) store_sums<K, V>(a.dse_sums + p.index * kD + column, a.D, k, dse_sums);
}

// g of each row becomes its sum from there on to the end of the run.
template <class T, int K, int V>
__device__ __forceinline__ void to_own_ends(const Scan<T>& a, const Piece& p, int64_t column, int k,
                                            const Kept<K, V>& kept) {
  const int64_t kD = k * a.D;
  float tail[K][V];
  load_sums<K, V>(a.g_after ? a.g_after + p.index * kD + column : nullptr, a.D, k, tail);
  for (int t = static_cast<int>(p.count) - 1; t >= 0; --t)
#pragma unroll
    for (int i = 0; i < K; ++i)
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (i < k) tail[i][v] += kept.at(t, i, v), kept.at(t, i, v) = tail[i][v];
}

// The sum of g over what of the next run sees the first row of this piece: of the pieces before the one of
// the same place, or of all if the run ends earlier. `rows`: how many rows that piece has there.
template <class T, int K, int V>
__device__ __forceinline__ void next_begins(const Scan<T>& a, const Piece& p, int64_t column, int k,
                                            float (&begin)[K][V], int64_t& rows) {
  const int64_t kD = k * a.D, each = parts(a.cut.run, a.cut.piece);
  const int64_t run_end = min((p.run_number + 2) * a.cut.run, p.length);
  rows = min(run_end - (p.token + a.cut.run), a.cut.piece);
  if (rows > 0) {
    load_sums<K, V>(a.g_before ? a.g_before + (p.index + each) * kD + column : nullptr, a.D, k, begin);
    return;
  }
  rows = 0;
  load_sums<K, V>(nullptr, a.D, k, begin);
  if ((p.run_number + 1) * a.cut.run >= p.length || !a.g_before) return;  // nothing follows
  float last[K][V];
  load_sums<K, V>(a.g_before + p.last_of_sequence * kD + column, a.D, k, begin);
  load_sums<K, V>(a.g_sums + p.last_of_sequence * kD + column, a.D, k, last);
#pragma unroll
  for (int i = 0; i < K; ++i)
#pragma unroll
    for (int v = 0; v < V; ++v) begin[i][v] += last[i][v];
}

template <class T, int K, int V, bool Window>
__device__ __forceinline__ void context_backward(const Scan<T>& a, const Piece& p, int64_t column, int k,
                                                 const Kept<K, V>& kept) {
  constexpr int U = (kUnrolled<K> + 1) / 2;
  const int64_t kD = k * a.D, start = p.first_row * kD + column, ahead = a.cut.run * kD;
  float begin[K][V] = {}, sums[K][V] = {};
  int64_t rows = 0;  // of the next run
  if constexpr (Window) next_begins<T, K, V>(a, p, column, k, begin, rows);
  for (int t = 0; t < p.count; t += U) {
    Word<T, V> ho[U][K], se[U][K], douts[U][K];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u < p.count) load_degrees<K, V>(a.ho + start + (t + u) * kD, a.D, k, ho[u]);
      if (Window && t + u + 1 < p.count && t + u < rows) {
        load_degrees<K, V>(a.se + start + ahead + (t + u) * kD, a.D, k, se[u]);
        load_degrees<K, V>(a.dout + start + ahead + (t + u) * kD, a.D, k, douts[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u >= p.count) break;
      float d[K][V];
#pragma unroll
      for (int i = 0; i < K; ++i)
#pragma unroll
        for (int v = 0; v < V; ++v) d[i][v] = i < k ? kept.at(t + u, i, v) + begin[i][v] : 0.0f;
      store_gradient<T, K, V>(ho[u], d, k, a.dho + start + (t + u) * kD, a.D, sums);
      if (!Window || t + u + 1 >= p.count || t + u >= rows) continue;
      const float share = share_of(a.cut, p.token + a.cut.run + t + u);
#pragma unroll
      for (int i = 0; i < K; ++i) {
        if (i >= k) break;
        float x[V], dout[V];
        unpack<T, V>(se[u][i], x);
        unpack<T, V>(douts[u][i], dout);
#pragma unroll
        for (int v = 0; v < V; ++v) begin[i][v] += dout[v] * sigmoid<T>(x[v]) * share;
      }
    }
  }
  if (a.dho_sums) store_sums<K, V>(a.dho_sums + p.index * kD + column, a.D, k, sums);
}

// Each thread reads and writes its own place in shared memory alone.
template <class T, int K, int V, bool Window>
__global__ void __launch_bounds__(kScanThreads<K, V>) scan_backward_kernel(const Scan<T> a) {
  __shared__ float shared[kKept<K, V>];
  const int k = K == kMaxMixerOrder ? a.order : K;
  const Spot s = spot_of<V, kScanThreads<K, V>>(a.D);
  if (!s.active) return;
  const Piece p = piece_at(a.cut, s.piece);
  const Kept<K, V> kept{shared + threadIdx.x};
  const bool far = Window && p.run_number > 0;
  if constexpr (Window)
    if (far) keep_far_ends<T, K, V>(a, p, s.column, k, kept);
  gates_backward<T, K, V>(a, p, s.column, k, far, kept);
  to_own_ends<T, K, V>(a, p, s.column, k, kept);
  context_backward<T, K, V, Window>(a, p, s.column, k, kept);
}

template <class T>
Scan<T> scan_of(const Cut& cut, const Sizes& s) {
  Scan<T> a{};
  a.cut = cut, a.D = s.D, a.order = s.order;
  return a;
}

}  // namespace

cudaError_t scan_forward(const Cut& cut, const Sizes& sizes, const ScanForward& p, cudaStream_t stream) {
  if (cut.pieces == 0) return cudaSuccess;
  return with_degrees(sizes, {p.ho, p.se, p.out}, [&](auto zero, auto degrees, auto columns) {
    constexpr int K = decltype(degrees)::value, V = decltype(columns)::value, kBlock = kScanThreads<K, V>;
    using T = decltype(zero);
    auto a = scan_of<T>(cut, sizes);
    a.ho = static_cast<const T*>(p.ho), a.se = static_cast<const T*>(p.se), a.out = static_cast<T*>(p.out);
    a.before = p.before, a.after = p.after;
    unsigned blocks;
    if (!grid_of<V, kBlock>(cut.pieces, sizes.D, blocks)) return cudaErrorInvalidValue;
    if (cut.runs > cut.sequences)
      scan_kernel<T, K, V, true><<<blocks, kBlock, 0, stream>>>(a);
    else
      scan_kernel<T, K, V, false><<<blocks, kBlock, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t scan_gate_sums(const Cut& cut, const Sizes& sizes, const void* dout, const void* se, float* out,
                           cudaStream_t stream) {
  if (cut.pieces == 0) return cudaSuccess;
  return with_columns(sizes, {dout, se}, [&](auto zero, auto columns) {
    constexpr int V = decltype(columns)::value;
    using T = decltype(zero);
    auto a = scan_of<T>(cut, sizes);
    a.dout = static_cast<const T*>(dout), a.se = static_cast<const T*>(se);
    unsigned blocks;
    if (!grid_of<V, kPieceThreads>(cut.pieces, sizes.columns(), blocks)) return cudaErrorInvalidValue;
    gate_sums_kernel<T, V><<<blocks, kPieceThreads, 0, stream>>>(a, out);
    return cudaGetLastError();
  });
}

cudaError_t scan_backward(const Cut& cut, const Sizes& sizes, const ScanBackward& p, cudaStream_t stream) {
  if (cut.pieces == 0) return cudaSuccess;
  return with_degrees(
      sizes, {p.dout, p.ho, p.se, p.dho, p.dse, p.gated}, [&](auto zero, auto degrees, auto columns) {
        constexpr int K = decltype(degrees)::value, V = decltype(columns)::value, kBlock = kScanThreads<K, V>;
        using T = decltype(zero);
        auto a = scan_of<T>(cut, sizes);
        a.ho = static_cast<const T*>(p.ho), a.se = static_cast<const T*>(p.se);
        a.dout = static_cast<const T*>(p.dout), a.dho = static_cast<T*>(p.dho);
        a.dse = static_cast<T*>(p.dse), a.out = static_cast<T*>(p.gated);
        a.before = p.before, a.after = p.after;
        a.g_sums = p.g_sums, a.g_before = p.g_before, a.g_after = p.g_after;
        a.dse_sums = p.dse_sums, a.dho_sums = p.dho_sums;
        unsigned blocks;
        if (!grid_of<V, kBlock>(cut.pieces, sizes.D, blocks)) return cudaErrorInvalidValue;
        if (cut.runs > cut.sequences)
          scan_backward_kernel<T, K, V, true><<<blocks, kBlock, 0, stream>>>(a);
        else
          scan_backward_kernel<T, K, V, false><<<blocks, kBlock, 0, stream>>>(a);
        return cudaGetLastError();
      });
}

}  // namespace pom::kernels::masked
