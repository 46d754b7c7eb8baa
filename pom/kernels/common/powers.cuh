// The running products p_i = gelu(x_i) p_{i-1} of a token's features, V columns of all K degrees in one
// thread: added up, and differentiated. K is the order, or kMaxMixerOrder for orders k without a kernel of
// their own.
#pragma once

#include "pom/kernels/common/activations.cuh"
#include "pom/kernels/common/columns.cuh"

namespace pom::kernels {

template <int K>  // tokens in flight in a thread: about eight loads
constexpr int kUnrolled = K <= 2   ? 4
                          : K <= 4 ? 2
                                   : 1;

template <int K, int V, class T>
__device__ __forceinline__ void load_degrees(const T* row, int64_t D, int k, Word<T, V> (&words)[K]) {
#pragma unroll
  for (int i = 0; i < K; ++i)
    if (i < k) words[i] = load<V>(row + i * D);
}

template <class T, int K, int V>
__device__ __forceinline__ void add_powers(const Word<T, V> (&words)[K], int k, float (&sums)[K][V]) {
  float power[V], x[V];
#pragma unroll
  for (int i = 0; i < K; ++i) {
    if (i >= k) break;
    unpack<T, V>(words[i], x);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      power[v] = i ? power[v] * gelu<T>(x[v]) : gelu<T>(x[v]);
      sums[i][v] += power[v];
    }
  }
}

// One column of a token: x_i, and d_i the gradient of its p_i, give the gradient of x_i in place.
template <class T, int K>
__device__ __forceinline__ void differentiate(float (&x)[K], const float (&d)[K], int k) {
  float g[K], slope[K], gemm[K];
#pragma unroll
  for (int i = 0; i < K; ++i) {
    if (i >= k) break;
    const Gelu one = summed_gelu_and_slope<T>(x[i]);
    g[i] = one.value, slope[i] = one.slope;
    gemm[i] = i ? gemm[i ? i - 1 : 0] * g[i] : g[i];
  }
  float carried = 0;  // the gradient of p_i, with what reaches it through p_{i+1}
#pragma unroll
  for (int i = K - 1; i >= 0; --i) {
    if (i >= k) continue;
    carried = i + 1 < k ? fmaf(carried, g[i + 1 < K ? i + 1 : i], d[i]) : d[i];
    x[i] = (i ? carried * gemm[i ? i - 1 : 0] : carried) * slope[i];
  }
}

// A token's words and the gradients of its products become the gradient of the words, which is stored and
// added to `sums`.
template <class T, int K, int V>
__device__ __forceinline__ void store_gradient(const Word<T, V> (&words)[K], const float (&d)[K][V], int k,
                                               T* row, int64_t D, float (&sums)[K][V]) {
  float x[K][V];
#pragma unroll
  for (int i = 0; i < K; ++i)
    if (i < k) unpack<T, V>(words[i], x[i]);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    float column[K], slopes[K];
#pragma unroll
    for (int i = 0; i < K; ++i) column[i] = x[i][v], slopes[i] = d[i][v];
    differentiate<T, K>(column, slopes, k);
#pragma unroll
    for (int i = 0; i < K; ++i)
      if (i < k) x[i][v] = column[i], sums[i][v] += column[i];
  }
#pragma unroll
  for (int i = 0; i < K; ++i)
    if (i < k) store_values<V>(row + i * D, x[i]);
}

}  // namespace pom::kernels
