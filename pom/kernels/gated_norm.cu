// A team of threads holds a row in registers from the sum to the norm, and back: see row_teams.cuh.
#include "pom/kernels/gated_norm.h"
#include "pom/kernels/row_teams.cuh"

namespace pom::kernels {
namespace {

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

template <class X, class Y, int V, int Vectors>
__global__ void __launch_bounds__(kThreads) gated_norm_kernel(const GatedNorm<X, Y> a) {
  __shared__ float shared[32];
  const Rows& r = a.rows;
  const int teams = blockDim.x / r.team, member = threadIdx.x % r.team;
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts;
  const int64_t end = min(r.tokens, (part + 1) * r.part_tokens);
  float gate[Vectors][V], scale[Vectors][V], shift[Vectors][V], bias[Vectors][V] = {};
  load_row<V, Vectors>(r, a.gate + batch * r.width, member, a.base, gate);
  load_row<V, Vectors>(r, a.scale + batch * r.width, member, 1.0f, scale);
  load_row<V, Vectors>(r, a.shift + batch * r.width, member, 0.0f, shift);
  if (a.bias) load_row<V, Vectors>(r, a.bias, member, 0.0f, bias);
  for (int64_t t = part * r.part_tokens + threadIdx.x / r.team; t < end; t += teams) {
    const int64_t row = batch * r.tokens + t;
    float x[Vectors][V] = {}, y[Vectors][V] = {};
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team);
      if (c >= r.width) continue;
      load_values<V>(a.x + row * r.width + c, x[i]);
      load_values<V>(a.y + row * r.width + c, y[i]);
    }
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team);
#pragma unroll
      for (int v = 0; v < V; ++v)  // the norm is that of the sum as it is stored
        x[i][v] = raised(lowered<X>(fmaf(y[i][v] + bias[i][v], gate[i][v], x[i][v])));
      if (c < r.width) store_values<V>(a.sum + row * r.width + c, x[i]);
    }
    const Moments m = centre_row<V, Vectors>(r, member, a.eps, x, shared);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team);
#pragma unroll
      for (int v = 0; v < V; ++v) x[i][v] = fmaf(x[i][v] * m.rstd, scale[i][v], shift[i][v]);
      if (c < r.width) store_values<V>(a.out + row * r.width + c, x[i]);
    }
    if (member == 0) a.new_mean[row] = m.mean, a.new_rstd[row] = m.rstd;
  }
}

// A thread's values of the rows gate, scale and shift, in shared memory: the sums of the backward pass need
// the registers.
template <int V, int Vectors>
struct Held {
  static constexpr int kRows = 3;
  static int bytes(int threads) { return kRows * V * Vectors * threads * static_cast<int>(sizeof(float)); }

  float* values;
  __device__ __forceinline__ float* at(int row, int i) const {
    return values + ((row * Vectors + i) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * V;
  }
  __device__ __forceinline__ void keep(const Rows& r, int row, const float* from, int member, float offset) {
    float loaded[Vectors][V];
    load_row<V, Vectors>(r, from, member, offset, loaded);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) store_values<V>(at(row, i), loaded[i]);
  }
  __device__ __forceinline__ void read(int row, int i, float (&to)[V]) const {
    load_values<V>(at(row, i), to);
  }
};

template <class X, class Y, int V, int Vectors, bool Again>
__global__ void __launch_bounds__(kThreads) gated_norm_backward_kernel(const GatedNorm<X, Y> a) {
  __shared__ float shared[32];
  extern __shared__ __align__(16) float held_values[];
  const Rows& r = a.rows;
  const int teams = blockDim.x / r.team, member = threadIdx.x % r.team;
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts;
  const int64_t end = min(r.tokens, (part + 1) * r.part_tokens);
  const float inverse_width = 1.0f / static_cast<float>(r.width);
  float dgate[Vectors][V] = {}, dscale[Vectors][V] = {}, dshift[Vectors][V] = {}, dsums[Vectors][V] = {};
  Held<V, Vectors> held{held_values};
  held.keep(r, 0, a.gate + batch * r.width, member, a.base);
  held.keep(r, 1, a.scale + batch * r.width, member, 1.0f);
  if constexpr (Again) held.keep(r, 2, a.shift + batch * r.width, member, 0.0f);
  for (int64_t t = part * r.part_tokens + threadIdx.x / r.team; t < end; t += teams) {
    const int64_t row = batch * r.tokens + t;
    const Moments m{a.mean[row], a.rstd[row]};
    float x[Vectors][V] = {}, d[Vectors][V] = {}, y[Vectors][V] = {}, direct[Vectors][V] = {};
    float2 sums = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team), at = row * r.width + c;
      if (c >= r.width) continue;
      load_values<V>(a.x + at, x[i]);
      load_values<V>(a.dout + at, d[i]);
      load_values<V>(a.y + at, y[i]);
      if (a.dsum) load_values<V>(a.dsum + at, direct[i]);
    }
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team);
      float scale[V], again[V] = {};
      held.read(1, i, scale);
      if constexpr (Again) held.read(2, i, again);
      differentiate_norm<V>(m, scale, x[i], d[i], dscale[i], dshift[i], sums);
#pragma unroll
      for (int v = 0; v < V; ++v) again[v] = fmaf(x[i][v], scale[v], again[v]);
      if (Again && c < r.width) store_values<V>(a.out + row * r.width + c, again);
    }
    sums = team_sums(sums, r.team, shared);
    sums.x *= inverse_width, sums.y *= inverse_width;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team), at = row * r.width + c;
      float gate[V];
      held.read(0, i, gate);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        d[i][v] = fmaf(m.rstd, d[i][v] - sums.x - x[i][v] * sums.y, direct[i][v]);
        dgate[i][v] = fmaf(d[i][v], y[i][v], dgate[i][v]);
        if constexpr (Again) dsums[i][v] += d[i][v];
        y[i][v] = d[i][v] * gate[v];
      }
      if (c >= r.width) continue;
      store_values<V>(a.dx + at, d[i]);
      store_values<V>(a.dy + at, y[i]);
    }
  }
  const int64_t at = static_cast<int64_t>(blockIdx.x) * r.width;
  // What was held is not needed any more.
  sum_teams<V, Vectors>(r, dgate, held_values, a.dgate + at);
  sum_teams<V, Vectors>(r, dscale, held_values, a.dscale + at);
  sum_teams<V, Vectors>(r, dshift, held_values, a.dshift + at);
  if constexpr (Again) sum_teams<V, Vectors>(r, dsums, held_values, a.dsums + at);
}

// ---- wide rows: a block takes some at once, a thread four columns of each, so that much is on its way from
// memory while it waits for sums. Backward, one at a time leaves room for more blocks. ----

constexpr int kAtOnce = 4, kAtOnceBack = 1, kWideThreads = 512;
constexpr int64_t kWideFrom = 384;  // narrower rows are for a warp

template <class X, class Y>
__global__ void __launch_bounds__(kWideThreads) wide_gated_norm_kernel(const GatedNorm<X, Y> a) {
  constexpr int V = 4, R = kAtOnce;
  __shared__ __align__(16) float shared[BlockSums<R>::kFloats];
  BlockSums<R> add_up{shared};
  const Rows& r = a.rows;
  const int member = static_cast<int>(threadIdx.x);
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts, c = V * member;
  const int64_t first = batch * r.tokens, end = first + min(r.tokens, (part + 1) * r.part_tokens);
  const bool inside = c < r.width;
  const float width = static_cast<float>(r.width);
  float gate[1][V], scale[1][V], shift[1][V], bias[1][V] = {};
  load_row<V, 1>(r, a.gate + batch * r.width, member, a.base, gate);
  load_row<V, 1>(r, a.scale + batch * r.width, member, 1.0f, scale);
  load_row<V, 1>(r, a.shift + batch * r.width, member, 0.0f, shift);
  if (a.bias) load_row<V, 1>(r, a.bias, member, 0.0f, bias);
  for (int64_t row = first + part * r.part_tokens; row < end; row += R) {
    Word<X, V> xs[R] = {};
    Word<Y, V> ys[R] = {};
#pragma unroll
    for (int u = 0; u < R; ++u)
      if (inside && row + u < end) {
        xs[u] = load<V>(a.x + (row + u) * r.width + c);
        ys[u] = load<V>(a.y + (row + u) * r.width + c);
      }
    float x[R][V], mean[R], rstd[R];
#pragma unroll
    for (int u = 0; u < R; ++u) {
      float y[V];
      unpack<X, V>(xs[u], x[u]);
      unpack<Y, V>(ys[u], y);
#pragma unroll
      for (int v = 0; v < V; ++v)  // the norm is that of the sum as it is stored
        x[u][v] = raised(lowered<X>(fmaf(y[v] + bias[0][v], gate[0][v], x[u][v])));
      if (inside && row + u < end) store_values<V>(a.sum + (row + u) * r.width + c, x[u]);
      mean[u] = (x[u][0] + x[u][1]) + (x[u][2] + x[u][3]);
    }
    add_up(mean);
#pragma unroll
    for (int u = 0; u < R; ++u) {
      mean[u] /= width, rstd[u] = 0;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        x[u][v] -= mean[u];
        if (inside) rstd[u] = fmaf(x[u][v], x[u][v], rstd[u]);
      }
    }
    add_up(rstd);
#pragma unroll
    for (int u = 0; u < R; ++u) {
      rstd[u] = 1.0f / sqrtf(rstd[u] / width + a.eps);
#pragma unroll
      for (int v = 0; v < V; ++v) x[u][v] = fmaf(x[u][v] * rstd[u], scale[0][v], shift[0][v]);
      if (row + u >= end) continue;
      if (inside) store_values<V>(a.out + (row + u) * r.width + c, x[u]);
      if (member == u) a.new_mean[row + u] = mean[u], a.new_rstd[row + u] = rstd[u];
    }
  }
}

template <class X, class Y, bool Again>
__global__ void __launch_bounds__(kWideThreads) wide_gated_norm_backward_kernel(const GatedNorm<X, Y> a) {
  constexpr int V = 4, R = kAtOnceBack;
  __shared__ __align__(16) float shared[BlockSums<2 * R>::kFloats];
  BlockSums<2 * R> add_up{shared};
  const Rows& r = a.rows;
  const int member = static_cast<int>(threadIdx.x);
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts, c = V * member;
  const int64_t first = batch * r.tokens, end = first + min(r.tokens, (part + 1) * r.part_tokens);
  const bool inside = c < r.width;
  const float inverse_width = 1.0f / static_cast<float>(r.width);
  float gate[1][V], scale[1][V], shift[1][V];
  load_row<V, 1>(r, a.gate + batch * r.width, member, a.base, gate);
  load_row<V, 1>(r, a.scale + batch * r.width, member, 1.0f, scale);
  if constexpr (Again) load_row<V, 1>(r, a.shift + batch * r.width, member, 0.0f, shift);
  float dgate[V] = {}, dscale[V] = {}, dshift[V] = {}, dsums[V] = {};
  for (int64_t row = first + part * r.part_tokens; row < end; row += R) {
    Word<X, V> xs[R] = {}, directs[R] = {};
    Word<Y, V> ys[R] = {}, ds[R] = {};
    Moments m[R] = {};
#pragma unroll
    for (int u = 0; u < R; ++u) {
      if (row + u >= end) continue;
      m[u] = {a.mean[row + u], a.rstd[row + u]};
      if (!inside) continue;
      const int64_t at = (row + u) * r.width + c;
      xs[u] = load<V>(a.x + at), ds[u] = load<V>(a.dout + at), ys[u] = load<V>(a.y + at);
      if (a.dsum) directs[u] = load<V>(a.dsum + at);
    }
    float x[R][V], d[R][V], sums[2 * R];
#pragma unroll
    for (int u = 0; u < R; ++u) {
      unpack<X, V>(xs[u], x[u]);
      unpack<Y, V>(ds[u], d[u]);
      float2 of_row = make_float2(0, 0);
      differentiate_norm<V>(m[u], scale[0], x[u], d[u], dscale, dshift, of_row);
      sums[2 * u] = of_row.x, sums[2 * u + 1] = of_row.y;
      if constexpr (Again) {
        float again[V];
#pragma unroll
        for (int v = 0; v < V; ++v) again[v] = fmaf(x[u][v], scale[0][v], shift[0][v]);
        if (inside && row + u < end) store_values<V>(a.out + (row + u) * r.width + c, again);
      }
    }
    add_up(sums);
#pragma unroll
    for (int u = 0; u < R; ++u) {
      float y[V], direct[V];
      unpack<Y, V>(ys[u], y);
      unpack<X, V>(directs[u], direct);
      const float of_d = sums[2 * u] * inverse_width, of_dx = sums[2 * u + 1] * inverse_width;
      const bool counts = inside && row + u < end;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        d[u][v] = counts ? fmaf(m[u].rstd, d[u][v] - of_d - x[u][v] * of_dx, direct[v]) : 0.0f;
        dgate[v] = fmaf(d[u][v], y[v], dgate[v]);
        if constexpr (Again) dsums[v] += d[u][v];
        y[v] = d[u][v] * gate[0][v];
      }
      if (!counts) continue;
      const int64_t at = (row + u) * r.width + c;
      store_values<V>(a.dx + at, d[u]);
      store_values<V>(a.dy + at, y);
    }
  }
  if (!inside) return;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * r.width + c;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    a.dgate[at + v] = dgate[v], a.dscale[at + v] = dscale[v], a.dshift[at + v] = dshift[v];
    if constexpr (Again) a.dsums[at + v] = dsums[v];
  }
}

template <class X, class Y>
cudaError_t launch_wide(const GatedNorm<X, Y>& a, unsigned blocks, bool backward, cudaStream_t stream) {
  const unsigned threads = static_cast<unsigned>(a.rows.team);
  if (!backward)
    wide_gated_norm_kernel<X, Y><<<blocks, threads, 0, stream>>>(a);
  else if (a.out)
    wide_gated_norm_backward_kernel<X, Y, true><<<blocks, threads, 0, stream>>>(a);
  else
    wide_gated_norm_backward_kernel<X, Y, false><<<blocks, threads, 0, stream>>>(a);
  return cudaGetLastError();
}

// What a bias beside y changes: dgate += bias dsums, and dbias = (base + gate) dsums over all pictures.
struct Bias {
  int64_t batch, width;
  const float *gate, *bias, *dsums;
  float *dgate, *dbias;
  float base;
};

__global__ void __launch_bounds__(kThreads) bias_kernel(const Bias a) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= a.width) return;
  const float bias = a.bias[c];
  float sum = 0;
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t at = b * a.width + c;
    const float d = a.dsums[at];
    a.dgate[at] = fmaf(bias, d, a.dgate[at]);
    sum = fmaf(a.base + a.gate[at], d, sum);
  }
  a.dbias[c] = sum;
}

template <int V, int Vectors, bool Again, class X, class Y>
cudaError_t launch_backward(const GatedNorm<X, Y>& a, unsigned blocks, cudaStream_t stream) {
  constexpr int kGranted = 47 << 10;  // without asking
  const auto kernel = gated_norm_backward_kernel<X, Y, V, Vectors, Again>;
  const int threads = a.rows.threads(), held = Held<V, Vectors>::bytes(threads);
  if (held > kGranted)
    if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, held);
        e != cudaSuccess)
      return e;
  kernel<<<blocks, static_cast<unsigned>(threads), static_cast<unsigned>(held), stream>>>(a);
  return cudaGetLastError();
}

template <class X, class Y>
cudaError_t launch_rows(const RowSizes& s, GatedNorm<X, Y> a, bool backward, cudaStream_t stream) {
  const auto fits = [](const auto* p) { return aligned(p, 4 * static_cast<int64_t>(sizeof *p)); };
  const bool fours = fits(a.x) && fits(a.dsum) && fits(a.y) && fits(a.dout) && fits(a.sum) && fits(a.dx) &&
                     fits(a.out) && fits(a.dy);
  if (fours && s.width % 4 == 0 && s.width > kWideFrom && s.width <= 4 * kWideThreads) {
    a.rows = rows_of(s, 4, backward, kAtOnce);
    if (s.batch * a.rows.parts > INT32_MAX) return cudaErrorInvalidValue;
    return launch_wide(a, static_cast<unsigned>(s.batch * a.rows.parts), backward, stream);
  }
  return with_vectors(s, fours, [&]<int V, int Vectors>() {
    a.rows = rows_of(s, V * Vectors, backward);
    if (s.batch * a.rows.parts > INT32_MAX) return cudaErrorInvalidValue;
    const unsigned blocks = static_cast<unsigned>(s.batch * a.rows.parts), threads = a.rows.threads();
    if (backward)
      return a.out ? launch_backward<V, Vectors, true>(a, blocks, stream)
                   : launch_backward<V, Vectors, false>(a, blocks, stream);
    gated_norm_kernel<X, Y, V, Vectors><<<blocks, threads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t gated_norm(const GatedNormParams& p, cudaStream_t stream) {
  if (!valid(p.sizes) || p.sizes.width > kMaxNormWidth) return cudaErrorInvalidValue;
  if (p.sizes.batch == 0 || p.sizes.tokens == 0) return cudaSuccess;
  return with_dtypes(p.x_dtype, p.y_dtype, [&](auto x, auto y) {
    using X = decltype(x);
    using Y = decltype(y);
    GatedNorm<X, Y> a{};
    a.x = static_cast<const X*>(p.x), a.y = static_cast<const Y*>(p.y), a.gate = p.gate, a.base = p.base;
    a.scale = p.scale, a.shift = p.shift, a.bias = p.bias, a.eps = p.eps, a.sum = static_cast<X*>(p.sum);
    a.out = static_cast<Y*>(p.out), a.new_mean = p.mean, a.new_rstd = p.rstd;
    return launch_rows<X, Y>(p.sizes, a, false, stream);
  });
}

int64_t gated_norm_scratch(const RowSizes& s, bool again) {
  const int parts = norm_parts(s);
  return s.batch * s.width * ((parts > 1 ? (again ? 4 : 3) * parts : 0) + (again ? 1 : 0));
}

cudaError_t gated_norm_backward(const GatedNormBackwardParams& p, cudaStream_t stream) {
  const RowSizes& s = p.sizes;
  if (!valid(s) || s.width > kMaxNormWidth) return cudaErrorInvalidValue;
  if ((p.again && !p.shift) || !p.bias != !p.dbias || (p.bias && !p.again)) return cudaErrorInvalidValue;
  if (s.batch == 0) return cudaSuccess;
  const int parts = norm_parts(s);
  const int64_t values = s.batch * s.width;
  float *const of_sum = p.scratch, *const partial = p.scratch + (p.again ? values : 0);
  const Folds folds{{{partial, p.dgate},
                     {partial + parts * values, p.dscale},
                     {partial + 2 * parts * values, p.dshift},
                     {partial + 3 * parts * values, of_sum}}};
  const auto sums = [&](int i) { return parts == 1 ? folds.each[i].to : folds.each[i].from; };
  cudaError_t status = with_dtypes(p.x_dtype, p.y_dtype, [&](auto x, auto y) {
    using X = decltype(x);
    using Y = decltype(y);
    GatedNorm<X, Y> a{};
    a.x = static_cast<const X*>(p.sum), a.dsum = static_cast<const X*>(p.dsum);
    a.y = static_cast<const Y*>(p.y), a.dout = static_cast<const Y*>(p.dout);
    a.gate = p.gate, a.base = p.base, a.scale = p.scale, a.mean = p.mean, a.rstd = p.rstd;
    a.dx = static_cast<X*>(p.dx), a.dy = static_cast<Y*>(p.dy);
    a.shift = p.shift, a.out = static_cast<Y*>(p.again);
    a.dgate = sums(0), a.dscale = sums(1), a.dshift = sums(2), a.dsums = sums(3);
    return launch_rows<X, Y>(s, a, true, stream);
  });
  if (status == cudaSuccess && parts > 1) status = fold_parts(folds, p.again ? 4 : 3, s, parts, stream);
  if (status != cudaSuccess || !p.bias) return status;
  const Bias b{s.batch, s.width, p.gate, p.bias, of_sum, p.dgate, p.dbias, p.base};
  bias_kernel<<<static_cast<unsigned>((s.width + kThreads - 1) / kThreads), kThreads, 0, stream>>>(b);
  return cudaGetLastError();
}

}  // namespace pom::kernels
