// Bandwidth alone counts: five buffers read, four written. A thread takes four values at a time where the
// buffers are aligned for it; the values past the last four, or all of unaligned buffers, go one by one.
// With copies of weights blocks take the tiles of weight_parts.cuh, with the same arithmetic.
#include <algorithm>
#include <cmath>

#include "pom/kernels/portable/adamw.h"
#include "pom/kernels/portable/weight_parts.cuh"

namespace pom::kernels {
namespace {

struct Step {
  float *p, *m, *v, *ema;
  const float *g, *clip_scale;
  int64_t n, decayed;
  float kept, beta1, grow1, beta2, grow2, rate, inverse_root2, eps, ema_weight;
};

// p: the new values.
template <int V>
__device__ __forceinline__ void step(const Step& a, int64_t at, float clip, float (&p)[V]) {
  float g[V], m[V], v[V], ema[V];
  load_values<V>(a.p + at, p);
  load_values<V>(a.g + at, g);
  load_values<V>(a.m + at, m);
  load_values<V>(a.v + at, v);
  if (a.ema) load_values<V>(a.ema + at, ema);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    g[i] *= clip;
    if (at + i < a.decayed) p[i] = __fmul_rn(p[i], a.kept);  // the same bits with and without copies
    m[i] = fmaf(a.beta1, m[i], a.grow1 * g[i]);
    v[i] = fmaf(a.beta2, v[i], a.grow2 * g[i] * g[i]);
    p[i] = __fadd_rn(p[i], -a.rate * m[i] / fmaf(sqrtf(v[i]), a.inverse_root2, a.eps));
    if (a.ema) ema[i] = fmaf(a.ema_weight, p[i] - ema[i], ema[i]);
  }
  store_values<V>(a.p + at, p);
  store_values<V>(a.m + at, m);
  store_values<V>(a.v + at, v);
  if (a.ema) store_values<V>(a.ema + at, ema);
}

template <int V>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const Step a) {
  const float clip = a.clip_scale ? *a.clip_scale : 1.0f;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads, whole = a.n / V * V;
  for (int64_t at = thread * V; at < whole; at += threads * V) {
    float p[V];
    step<V>(a, at, clip, p);
  }
  float p[1];
  if (whole + thread < a.n) step<1>(a, whole + thread, clip, p);
}

struct Stepped {
  const Step& a;
  float clip;
  template <int V>
  __device__ __forceinline__ void operator()(int64_t at, float (&values)[V]) const {
    step<V>(a, at, clip, values);
  }
};

__global__ void __launch_bounds__(kThreads)
    adamw_copies_kernel(const Step a, const WeightParts w, bool wide) {
  weight_tile(w, wide, Stepped{a, a.clip_scale ? *a.clip_scale : 1.0f});
}

}  // namespace

cudaError_t adamw(const AdamWParams& params, cudaStream_t stream) {
  if (params.n < 0 || params.decayed < 0) return cudaErrorInvalidValue;
  if (params.n == 0) return cudaSuccess;
  Step a{};
  a.p = params.p, a.m = params.m, a.v = params.v, a.g = params.g, a.clip_scale = params.clip_scale;
  a.ema = params.ema_decay == 1.0 ? nullptr : params.ema;
  a.n = params.n, a.decayed = params.decayed;
  a.kept = static_cast<float>(1.0 - params.lr * params.weight_decay);
  a.beta1 = static_cast<float>(params.beta1), a.grow1 = static_cast<float>(1.0 - params.beta1);
  a.beta2 = static_cast<float>(params.beta2), a.grow2 = static_cast<float>(1.0 - params.beta2);
  a.rate = static_cast<float>(params.lr / params.bias_correction1);
  a.inverse_root2 = static_cast<float>(1.0 / std::sqrt(params.bias_correction2));
  a.eps = static_cast<float>(params.eps), a.ema_weight = static_cast<float>(1.0 - params.ema_decay);
  constexpr int64_t kMostBlocks = 132 * 16;  // a few waves of any GPU; the loop strides over the rest
  const bool wide =
      aligned(a.p, 16) && aligned(a.g, 16) && aligned(a.m, 16) && aligned(a.v, 16) && aligned(a.ema, 16);
  if (params.weights.count > 0) {
    if (!launchable(params.weights)) return cudaErrorInvalidValue;
    adamw_copies_kernel<<<static_cast<unsigned>(params.weights.tiles), kThreads, 0, stream>>>(
        a, params.weights, wide);
    return cudaGetLastError();
  }
  const int64_t each = kThreads * (wide ? 4 : 1);
  const unsigned blocks = static_cast<unsigned>(std::min((a.n + each - 1) / each, kMostBlocks));
  if (wide)
    adamw_kernel<4><<<blocks, kThreads, 0, stream>>>(a);
  else
    adamw_kernel<1><<<blocks, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace pom::kernels
