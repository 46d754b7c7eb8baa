// Four kernels, each a pass over its tensors. Products along the degrees need the same column of every chunk,
// so a thread of the context's kernels holds V columns of all K chunks; the gate knows no degrees and takes
// the kD features as they come. K is a template for the common orders; kMaxMixerOrder serves the others.
#include "pom/kernels/common/powers.cuh"
#include "pom/kernels/portable/mixer.h"

namespace pom::kernels {
namespace {

// ---- the context ----

template <class T>
struct Context {
  Tiles tiles;  // over D columns
  const T* ho;
  T* dho;
  const float* dH;
  float *sums, *out;  // (B, parts, kD) or null; (B, kD)
  int order;
};

template <class T, int K, int V>
__global__ void __launch_bounds__(kThreads) means_kernel(const Context<T> a) {
  constexpr int U = kUnrolled<K>;
  __shared__ float shared[kThreads * V];
  const int k = K == kMaxMixerOrder ? a.order : K;
  const Place p = place_of<V>(a.tiles);
  const int64_t D = a.tiles.columns, kD = k * D;
  const T* ho = a.ho + p.batch * a.tiles.tokens * kD + p.column;
  float sums[K][V] = {};
  for (int64_t t = p.first; p.active && t < p.end; t += U * p.groups) {
    Word<T, V> words[U][K];
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int i = 0; i < K; ++i)
        if (t + u * p.groups < p.end && i < k) words[u][i] = load<V>(ho + (t + u * p.groups) * kD + i * D);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u * p.groups >= p.end) break;
      float gemm[V], x[V];
#pragma unroll
      for (int i = 0; i < K; ++i) {
        if (i >= k) break;
        unpack<T, V>(words[u][i], x);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          gemm[v] = i ? gemm[v] * gelu<T>(x[v]) : gelu<T>(x[v]);
          sums[i][v] += gemm[v];
        }
      }
    }
  }
  const bool whole = a.tiles.parts == 1;
  float* out = whole ? a.out + p.batch * kD : a.sums + (p.batch * a.tiles.parts + p.part) * kD;
#pragma unroll
  for (int i = 0; i < K; ++i)
    if (i < k)
      sum_groups<V>(a.tiles, p, sums[i], shared, whole ? static_cast<float>(a.tiles.tokens) : 1.0f,
                    out + i * D);
}

template <class T, int K, int V>
__global__ void __launch_bounds__(kThreads) means_backward_kernel(const Context<T> a) {
  constexpr int U = (kUnrolled<K> + 1) / 2;
  __shared__ float shared[kThreads * V];
  const int k = K == kMaxMixerOrder ? a.order : K;
  const Place p = place_of<V>(a.tiles);
  const int64_t D = a.tiles.columns, kD = k * D, start = p.batch * a.tiles.tokens * kD + p.column;
  const float scale = 1.0f / static_cast<float>(a.tiles.tokens);
  float d[V][K] = {}, sums[K][V] = {};
#pragma unroll
  for (int i = 0; i < K; ++i)
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (i < k && p.active) d[v][i] = a.dH[p.batch * kD + i * D + p.column + v] * scale;
  for (int64_t t = p.first; p.active && t < p.end; t += U * p.groups) {
    Word<T, V> words[U][K];
#pragma unroll
    for (int u = 0; u < U; ++u)
#pragma unroll
      for (int i = 0; i < K; ++i)
        if (t + u * p.groups < p.end && i < k)
          words[u][i] = load<V>(a.ho + start + (t + u * p.groups) * kD + i * D);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u * p.groups >= p.end) break;
      float x[K][V];
#pragma unroll
      for (int i = 0; i < K; ++i)
        if (i < k) unpack<T, V>(words[u][i], x[i]);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float column[K];
#pragma unroll
        for (int i = 0; i < K; ++i) column[i] = x[i][v];
        differentiate<T, K>(column, d[v], k);
#pragma unroll
        for (int i = 0; i < K; ++i)
          if (i < k) x[i][v] = column[i], sums[i][v] += column[i];
      }
#pragma unroll
      for (int i = 0; i < K; ++i)
        if (i < k) store_values<V>(a.dho + start + (t + u * p.groups) * kD + i * D, x[i]);
    }
  }
  if (!a.sums) return;
#pragma unroll
  for (int i = 0; i < K; ++i)
    if (i < k)
      sum_groups<V>(a.tiles, p, sums[i], shared, 1.0f,
                    a.sums + (p.batch * a.tiles.parts + p.part) * kD + i * D);
}

template <class T, int K, int V>
cudaError_t launch_context(const MixerSizes& s, Context<T> a, bool backward, cudaStream_t stream) {
  a.tiles = tiles_of(s.batch, s.tokens, s.D, V);
  if (!launchable(a.tiles)) return cudaErrorInvalidValue;
  const unsigned blocks = static_cast<unsigned>(a.tiles.blocks);
  if (backward)
    means_backward_kernel<T, K, V><<<blocks, kThreads, 0, stream>>>(a);
  else
    means_kernel<T, K, V><<<blocks, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <class T, int K>
cudaError_t launch_aligned(const MixerSizes& s, const Context<T>& a, bool backward, cudaStream_t stream) {
  // At most 16 bytes at a time, and fewer columns where there are many degrees.
  constexpr int V = K <= 2 ? 16 / sizeof(T) : K <= 6 ? 4 : 4 / sizeof(T);
  constexpr int64_t kBytes = V * sizeof(T);
  if (s.D % V == 0 && aligned(a.ho, kBytes) && aligned(a.dho, kBytes))
    return launch_context<T, K, V>(s, a, backward, stream);
  return launch_context<T, K, 1>(s, a, backward, stream);
}

template <class T>
cudaError_t launch_context(const MixerSizes& s, Context<T> a, bool backward, cudaStream_t stream) {
  a.order = s.order;
  switch (s.order) {
    case 1:
      return launch_aligned<T, 1>(s, a, backward, stream);
    case 2:
      return launch_aligned<T, 2>(s, a, backward, stream);
    case 3:
      return launch_aligned<T, 3>(s, a, backward, stream);
    case 4:
      return launch_aligned<T, 4>(s, a, backward, stream);
    case 6:
      return launch_aligned<T, 6>(s, a, backward, stream);
    default:
      return launch_aligned<T, kMaxMixerOrder>(s, a, backward, stream);
  }
}

// ---- the gate ----

template <class T>
struct Gate {
  Tiles tiles;  // over kD columns
  const T *dout, *se;
  const float* H;
  T *out, *dse;
  float *dH, *dse_sums;  // both (B, parts, kD); the second may be null
};

template <class T, int V>
__global__ void __launch_bounds__(kThreads) gate_kernel(const Gate<T> a) {
  constexpr int U = 4;
  const Place p = place_of<V>(a.tiles);
  if (!p.active) return;
  const int64_t C = a.tiles.columns, start = p.batch * a.tiles.tokens * C + p.column;
  float h[V];
#pragma unroll
  for (int v = 0; v < V; ++v) h[v] = a.H[p.batch * C + p.column + v];
  for (int64_t t = p.first; t < p.end; t += U * p.groups) {
    Word<T, V> words[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u * p.groups < p.end) words[u] = load<V>(a.se + start + (t + u * p.groups) * C);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u * p.groups >= p.end) break;
      float x[V];
      unpack<T, V>(words[u], x);
#pragma unroll
      for (int v = 0; v < V; ++v) x[v] = sigmoid<T>(x[v]) * h[v];
      store_values<V>(a.out + start + (t + u * p.groups) * C, x);
    }
  }
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads) gate_backward_kernel(const Gate<T> a) {
  constexpr int U = 2;
  __shared__ float shared[kThreads * V];
  const Place p = place_of<V>(a.tiles);
  const int64_t C = a.tiles.columns, start = p.batch * a.tiles.tokens * C + p.column;
  float h[V] = {}, dH[V] = {}, dse_sums[V] = {};
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (p.active) h[v] = a.H[p.batch * C + p.column + v];
  for (int64_t t = p.first; p.active && t < p.end; t += U * p.groups) {
    Word<T, V> douts[U], ses[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u * p.groups < p.end) {
        douts[u] = load<V>(a.dout + start + (t + u * p.groups) * C);
        ses[u] = load<V>(a.se + start + (t + u * p.groups) * C);
      }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u * p.groups >= p.end) break;
      const int64_t at = start + (t + u * p.groups) * C;
      float dout[V], x[V], gated[V];
      unpack<T, V>(douts[u], dout);
      unpack<T, V>(ses[u], x);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float s = sigmoid<T>(x[v]);
        gated[v] = s * h[v];
        dH[v] = fmaf(dout[v], s, dH[v]);
        x[v] = dout[v] * gated[v] * (1.0f - s);
        dse_sums[v] += x[v];
      }
      store_values<V>(a.dse + at, x);
      if (a.out) store_values<V>(a.out + at, gated);
    }
  }
  const int64_t row = (p.batch * a.tiles.parts + p.part) * C;
  sum_groups<V>(a.tiles, p, dH, shared, 1.0f, a.dH + row);
  if (a.dse_sums) sum_groups<V>(a.tiles, p, dse_sums, shared, 1.0f, a.dse_sums + row);
}

template <class T, int V>
cudaError_t launch_gate(const MixerSizes& s, Gate<T> a, bool backward, cudaStream_t stream) {
  a.tiles = tiles_of(s.batch, s.queries, s.features(), V);
  if (!launchable(a.tiles)) return cudaErrorInvalidValue;
  const unsigned blocks = static_cast<unsigned>(a.tiles.blocks);
  if (backward)
    gate_backward_kernel<T, V><<<blocks, kThreads, 0, stream>>>(a);
  else
    gate_kernel<T, V><<<blocks, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_gate(const MixerSizes& s, const Gate<T>& a, bool backward, cudaStream_t stream) {
  constexpr int V = 16 / static_cast<int>(sizeof(T));
  const bool all = aligned(a.dout, 16) && aligned(a.se, 16) && aligned(a.out, 16) && aligned(a.dse, 16);
  if (all && s.features() % V == 0) return launch_gate<T, V>(s, a, backward, stream);
  return launch_gate<T, 1>(s, a, backward, stream);
}

bool valid(const MixerSizes& s) {
  return s.batch >= 0 && s.queries >= 0 && s.tokens >= 0 && s.D >= 1 && s.order >= 1 &&
         s.order <= kMaxMixerOrder;
}

template <class Launch>
cudaError_t with_dtype(Dtype dtype, const Launch& launch) {
  switch (dtype) {
    case Dtype::fp32:
      return launch(float());
    case Dtype::bf16:
      return launch(__nv_bfloat16());
    case Dtype::fp16:
      return launch(__half());
    case Dtype::e4m3:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int context_parts(const MixerSizes& s) {
  return parts_of(s.batch, s.tokens, s.D);
}
int query_parts(const MixerSizes& s) {
  return parts_of(s.batch, s.queries, s.features());
}

cudaError_t mixer_means(const MeansParams& p, cudaStream_t stream) {
  const MixerSizes& s = p.sizes;
  if (!valid(s) || s.tokens == 0) return cudaErrorInvalidValue;
  if (s.batch == 0) return cudaSuccess;
  const int parts = context_parts(s);
  const cudaError_t status = with_dtype(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    Context<T> a{};
    a.ho = static_cast<const T*>(p.ho), a.out = p.H, a.sums = p.scratch;
    return launch_context<T>(s, a, false, stream);
  });
  if (status != cudaSuccess || parts == 1) return status;
  return fold(p.scratch, p.H, s.batch, parts, s.features(), static_cast<float>(s.tokens), stream);
}

cudaError_t mixer_gate(const GateParams& p, cudaStream_t stream) {
  const MixerSizes& s = p.sizes;
  if (!valid(s)) return cudaErrorInvalidValue;
  if (s.batch == 0 || s.queries == 0) return cudaSuccess;
  return with_dtype(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    Gate<T> a{};
    a.se = static_cast<const T*>(p.se), a.H = p.H, a.out = static_cast<T*>(p.out);
    return launch_gate<T>(s, a, false, stream);
  });
}

cudaError_t mixer_gate_backward(const GateBackwardParams& p, cudaStream_t stream) {
  const MixerSizes& s = p.sizes;
  if (!valid(s)) return cudaErrorInvalidValue;
  if (s.batch == 0) return cudaSuccess;
  const int parts = query_parts(s);
  const cudaError_t status = with_dtype(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    Gate<T> a{};
    a.dout = static_cast<const T*>(p.dout), a.se = static_cast<const T*>(p.se), a.H = p.H;
    a.out = static_cast<T*>(p.gated), a.dse = static_cast<T*>(p.dse);
    a.dH = parts == 1 ? p.dH : p.scratch, a.dse_sums = p.dse_sums;
    return launch_gate<T>(s, a, true, stream);
  });
  if (status != cudaSuccess || parts == 1) return status;
  return fold(p.scratch, p.dH, s.batch, parts, s.features(), 1.0f, stream);
}

cudaError_t mixer_means_backward(const MeansBackwardParams& p, cudaStream_t stream) {
  const MixerSizes& s = p.sizes;
  if (!valid(s) || s.tokens == 0) return cudaErrorInvalidValue;
  if (s.batch == 0) return cudaSuccess;
  return with_dtype(s.dtype, [&](auto zero) {
    using T = decltype(zero);
    Context<T> a{};
    a.ho = static_cast<const T*>(p.ho), a.dho = static_cast<T*>(p.dho), a.dH = p.dH, a.sums = p.dho_sums;
    return launch_context<T>(s, a, true, stream);
  });
}

}  // namespace pom::kernels
