// The norm: a team of 32 to 256 threads holds a row in registers, at most 16 values a thread; the teams of a
// block take the rows of a run of tokens of one picture. The gated add: columns and tokens of columns.cuh.
#include "pom/kernels/common/row_teams.cuh"
#include "pom/kernels/portable/modulation.h"

namespace pom::kernels {
namespace {

// ---- the norm ----

template <class X, class Out>
struct Norm {
  Rows rows;
  const X* x;
  const Out* dout;
  const float *scale, *shift, *mean, *rstd;
  Out* out;
  X* dx;
  float *new_mean, *new_rstd;
  float *dscale, *dshift;  // (B, parts, d)
  float eps;
};

template <class X, class Out, int V, int Vectors>
__global__ void __launch_bounds__(kThreads) norm_kernel(const Norm<X, Out> a) {
  __shared__ float shared[32];
  const Rows& r = a.rows;
  const int teams = blockDim.x / r.team, member = threadIdx.x % r.team;
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts;
  const int64_t end = min(r.tokens, (part + 1) * r.part_tokens);
  float scale[Vectors][V], shift[Vectors][V];
  load_row<V, Vectors>(r, a.scale + batch * r.width, member, 1.0f, scale);
  load_row<V, Vectors>(r, a.shift + batch * r.width, member, 0.0f, shift);
  for (int64_t t = part * r.part_tokens + threadIdx.x / r.team; t < end; t += teams) {
    const int64_t row = batch * r.tokens + t;
    float x[Vectors][V] = {};
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team);
      if (c < r.width) load_values<V>(a.x + row * r.width + c, x[i]);
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

template <class X, class Out, int V, int Vectors>
__global__ void __launch_bounds__(kThreads) norm_backward_kernel(const Norm<X, Out> a) {
  __shared__ float shared[32], columns[kThreads * V * Vectors];
  const Rows& r = a.rows;
  const int teams = blockDim.x / r.team, member = threadIdx.x % r.team;
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts;
  const int64_t end = min(r.tokens, (part + 1) * r.part_tokens);
  const float inverse_width = 1.0f / static_cast<float>(r.width);
  float scale[Vectors][V], dscale[Vectors][V] = {}, dshift[Vectors][V] = {};
  load_row<V, Vectors>(r, a.scale + batch * r.width, member, 1.0f, scale);
  for (int64_t t = part * r.part_tokens + threadIdx.x / r.team; t < end; t += teams) {
    const int64_t row = batch * r.tokens + t;
    const Moments m{a.mean[row], a.rstd[row]};
    float x[Vectors][V] = {}, d[Vectors][V] = {};
    float2 sums = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team);
      if (c >= r.width) continue;
      load_values<V>(a.x + row * r.width + c, x[i]);
      load_values<V>(a.dout + row * r.width + c, d[i]);
    }
#pragma unroll
    for (int i = 0; i < Vectors; ++i)
      differentiate_norm<V>(m, scale[i], x[i], d[i], dscale[i], dshift[i], sums);
    sums = team_sums(sums, r.team, shared);
    sums.x *= inverse_width, sums.y *= inverse_width;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team);
#pragma unroll
      for (int v = 0; v < V; ++v) d[i][v] = m.rstd * (d[i][v] - sums.x - x[i][v] * sums.y);
      if (c < r.width) store_values<V>(a.dx + row * r.width + c, d[i]);
    }
  }
  const int64_t at = static_cast<int64_t>(blockIdx.x) * r.width;
  sum_teams<V, Vectors>(r, dscale, columns, a.dscale + at);
  sum_teams<V, Vectors>(r, dshift, columns, a.dshift + at);
}

template <int V, int Vectors, class X, class Out>
cudaError_t launch_norm(const RowSizes& s, Norm<X, Out> a, bool backward, cudaStream_t stream) {
  a.rows = rows_of(s, V * Vectors, backward ? norm_parts(s) : row_parts(s, kManyBlocks));
  const int parts = a.rows.parts, threads = a.rows.threads();
  if (s.batch * parts > INT32_MAX) return cudaErrorInvalidValue;
  const unsigned blocks = static_cast<unsigned>(s.batch * parts);
  if (backward)
    norm_backward_kernel<X, Out, V, Vectors><<<blocks, threads, 0, stream>>>(a);
  else
    norm_kernel<X, Out, V, Vectors><<<blocks, threads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <class X, class Out>
cudaError_t launch_norm(const RowSizes& s, const Norm<X, Out>& a, bool backward, cudaStream_t stream) {
  const auto fits = [](const auto* p) { return aligned(p, 4 * static_cast<int64_t>(sizeof *p)); };
  const bool fours = fits(a.x) && fits(a.dout) && fits(a.out) && fits(a.dx);
  return with_vectors(s, fours,
                      [&]<int V, int Vectors>() { return launch_norm<V, Vectors>(s, a, backward, stream); });
}

// ---- the gated add ----

template <class X, class Y>
struct Add {
  Tiles tiles;
  const X* x;  // backward: dout
  const Y* y;
  const float* gate;
  X* out;
  Y* dy;
  float* dgate;  // (B, parts, d)
  float base;
};

template <class X, class Y, int V>
__global__ void __launch_bounds__(kThreads) add_kernel(const Add<X, Y> a) {
  constexpr int U = 2;
  const Place p = place_of<V>(a.tiles);
  if (!p.active) return;
  const int64_t d = a.tiles.columns, start = p.batch * a.tiles.tokens * d + p.column;
  float gate[V];
#pragma unroll
  for (int v = 0; v < V; ++v) gate[v] = a.base + a.gate[p.batch * d + p.column + v];
  for (int64_t t = p.first; t < p.end; t += U * p.groups) {
    float x[U][V], y[U][V];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u * p.groups < p.end) {
        load_values<V>(a.x + start + (t + u * p.groups) * d, x[u]);
        load_values<V>(a.y + start + (t + u * p.groups) * d, y[u]);
      }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u * p.groups >= p.end) break;
#pragma unroll
      for (int v = 0; v < V; ++v) x[u][v] = fmaf(y[u][v], gate[v], x[u][v]);
      store_values<V>(a.out + start + (t + u * p.groups) * d, x[u]);
    }
  }
}

template <class X, class Y, int V>
__global__ void __launch_bounds__(kThreads) add_backward_kernel(const Add<X, Y> a) {
  constexpr int U = 2;
  __shared__ float shared[kThreads * V];
  const Place p = place_of<V>(a.tiles);
  const int64_t d = a.tiles.columns, start = p.batch * a.tiles.tokens * d + p.column;
  float gate[V] = {}, sums[V] = {};
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (p.active) gate[v] = a.base + a.gate[p.batch * d + p.column + v];
  for (int64_t t = p.first; p.active && t < p.end; t += U * p.groups) {
    float dout[U][V], y[U][V];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (t + u * p.groups < p.end) {
        load_values<V>(a.x + start + (t + u * p.groups) * d, dout[u]);
        load_values<V>(a.y + start + (t + u * p.groups) * d, y[u]);
      }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (t + u * p.groups >= p.end) break;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        sums[v] = fmaf(dout[u][v], y[u][v], sums[v]);
        dout[u][v] *= gate[v];
      }
      store_values<V>(a.dy + start + (t + u * p.groups) * d, dout[u]);
    }
  }
  sum_groups<V>(a.tiles, p, sums, shared, 1.0f, a.dgate + (p.batch * a.tiles.parts + p.part) * d);
}

template <int V, class X, class Y>
cudaError_t launch_add(const RowSizes& s, Add<X, Y> a, bool backward, cudaStream_t stream) {
  a.tiles = tiles_of(s.batch, s.tokens, s.width, V);
  if (!launchable(a.tiles)) return cudaErrorInvalidValue;
  const unsigned blocks = static_cast<unsigned>(a.tiles.blocks);
  if (backward)
    add_backward_kernel<X, Y, V><<<blocks, kThreads, 0, stream>>>(a);
  else
    add_kernel<X, Y, V><<<blocks, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <class X, class Y>
cudaError_t launch_add(const RowSizes& s, const Add<X, Y>& a, bool backward, cudaStream_t stream) {
  const auto fits = [](const auto* p) { return aligned(p, 4 * static_cast<int64_t>(sizeof *p)); };
  if (s.width % 4 == 0 && fits(a.x) && fits(a.y) && fits(a.out) && fits(a.dy))
    return launch_add<4>(s, a, backward, stream);
  return launch_add<1>(s, a, backward, stream);
}

}  // namespace

int norm_parts(const RowSizes& s) {
  constexpr int64_t kBlocks = 1056;  // each leaves a row of every sum
  return row_parts(s, kBlocks);
}
int gate_parts(const RowSizes& s) {
  return parts_of(s.batch, s.tokens, s.width);
}

cudaError_t sum_rows(const RowSumParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.rows > INT32_MAX / kFoldGroups || p.width < 1) return cudaErrorInvalidValue;
  const Folds folds{{{const_cast<float*>(p.in), p.out}}};
  return fold_parts(folds, 1, {1, 1, p.width}, static_cast<int>(p.rows), stream);
}

cudaError_t modulated_norm(const NormParams& p, cudaStream_t stream) {
  if (!valid(p.sizes) || p.sizes.width > kMaxNormWidth) return cudaErrorInvalidValue;
  if (p.sizes.batch == 0 || p.sizes.tokens == 0) return cudaSuccess;
  return with_dtypes(p.x_dtype, p.out_dtype, [&](auto x, auto out) {
    using X = decltype(x);
    using Out = decltype(out);
    Norm<X, Out> a{};
    a.x = static_cast<const X*>(p.x), a.scale = p.scale, a.shift = p.shift, a.eps = p.eps;
    a.out = static_cast<Out*>(p.out), a.new_mean = p.mean, a.new_rstd = p.rstd;
    return launch_norm<X, Out>(p.sizes, a, false, stream);
  });
}

cudaError_t modulated_norm_backward(const NormBackwardParams& p, cudaStream_t stream) {
  const RowSizes& s = p.sizes;
  if (!valid(s) || s.width > kMaxNormWidth) return cudaErrorInvalidValue;
  if (s.batch == 0) return cudaSuccess;
  const int parts = norm_parts(s);
  float* const second = p.scratch + s.batch * parts * s.width;
  const cudaError_t status = with_dtypes(p.x_dtype, p.dout_dtype, [&](auto x, auto dout) {
    using X = decltype(x);
    using Out = decltype(dout);
    Norm<X, Out> a{};
    a.x = static_cast<const X*>(p.x), a.dout = static_cast<const Out*>(p.dout), a.scale = p.scale;
    a.mean = p.mean, a.rstd = p.rstd, a.dx = static_cast<X*>(p.dx);
    a.dscale = parts == 1 ? p.dscale : p.scratch, a.dshift = parts == 1 ? p.dshift : second;
    return launch_norm<X, Out>(s, a, true, stream);
  });
  if (status != cudaSuccess || parts == 1) return status;
  return fold_parts({{{p.scratch, p.dscale}, {second, p.dshift}}}, 2, s, parts, stream);
}

cudaError_t gated_add(const GatedAddParams& p, cudaStream_t stream) {
  if (!valid(p.sizes)) return cudaErrorInvalidValue;
  if (p.sizes.batch == 0 || p.sizes.tokens == 0) return cudaSuccess;
  return with_dtypes(p.x_dtype, p.y_dtype, [&](auto x, auto y) {
    using X = decltype(x);
    using Y = decltype(y);
    Add<X, Y> a{};
    a.x = static_cast<const X*>(p.x), a.y = static_cast<const Y*>(p.y), a.gate = p.gate, a.base = p.base;
    a.out = static_cast<X*>(p.out);
    return launch_add<X, Y>(p.sizes, a, false, stream);
  });
}

cudaError_t gated_add_backward(const GatedAddBackwardParams& p, cudaStream_t stream) {
  const RowSizes& s = p.sizes;
  if (!valid(s)) return cudaErrorInvalidValue;
  if (s.batch == 0) return cudaSuccess;
  const int parts = gate_parts(s);
  const cudaError_t status = with_dtypes(p.dout_dtype, p.y_dtype, [&](auto dout, auto y) {
    using X = decltype(dout);
    using Y = decltype(y);
    Add<X, Y> a{};
    a.x = static_cast<const X*>(p.dout), a.y = static_cast<const Y*>(p.y), a.gate = p.gate, a.base = p.base;
    a.dy = static_cast<Y*>(p.dy), a.dgate = parts == 1 ? p.dgate : p.scratch;
    return launch_add<X, Y>(s, a, true, stream);
  });
  if (status != cudaSuccess || parts == 1) return status;
  return fold_parts({{{p.scratch, p.dgate}}}, 1, s, parts, stream);
}

}  // namespace pom::kernels
