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
  const float *gate, *scale, *shift, *mean, *rstd;
  X *sum, *dx;
  Y *out, *dy;
  float *new_mean, *new_rstd;
  float *dgate, *dscale, *dshift;  // (B, parts, d)
  float base, eps;
};

// `offset` + a row of (B, d), the thread's values of it; 0 beyond the width.
template <int V, int Vectors>
__device__ __forceinline__ void load_row(const Rows& r, const float* row, int member, float offset,
                                         float (&values)[Vectors][V]) {
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int64_t c = column_of<V>(member, i, r.team);
#pragma unroll
    for (int v = 0; v < V; ++v) values[i][v] = c < r.width ? offset + row[c + v] : 0.0f;
  }
}

template <class X, class Y, int V, int Vectors>
__global__ void __launch_bounds__(kThreads) gated_norm_kernel(const GatedNorm<X, Y> a) {
  __shared__ float shared[32];
  const Rows& r = a.rows;
  const int teams = blockDim.x / r.team, member = threadIdx.x % r.team;
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts;
  const int64_t end = min(r.tokens, (part + 1) * r.part_tokens);
  float gate[Vectors][V], scale[Vectors][V], shift[Vectors][V];
  load_row<V, Vectors>(r, a.gate + batch * r.width, member, a.base, gate);
  load_row<V, Vectors>(r, a.scale + batch * r.width, member, 1.0f, scale);
  load_row<V, Vectors>(r, a.shift + batch * r.width, member, 0.0f, shift);
  for (int64_t t = part * r.part_tokens + threadIdx.x / r.team; t < end; t += teams) {
    const int64_t row = batch * r.tokens + t;
    float x[Vectors][V] = {}, y[Vectors][V] = {}, sum = 0, squares = 0;
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
      for (int v = 0; v < V; ++v) {  // the norm is that of the sum as it is stored
        x[i][v] = raised(lowered<X>(fmaf(y[i][v], gate[i][v], x[i][v])));
        sum += x[i][v];
      }
      if (c < r.width) store_values<V>(a.sum + row * r.width + c, x[i]);
    }
    const float mean = team_sum(sum, r.team, shared) / static_cast<float>(r.width);
#pragma unroll
    for (int i = 0; i < Vectors; ++i)
#pragma unroll
      for (int v = 0; v < V; ++v) {
        x[i][v] -= mean;
        if (column_of<V>(member, i, r.team) < r.width) squares = fmaf(x[i][v], x[i][v], squares);
      }
    const float variance = team_sum(squares, r.team, shared) / static_cast<float>(r.width);
    const float rstd = 1.0f / sqrtf(variance + a.eps);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team);
#pragma unroll
      for (int v = 0; v < V; ++v) x[i][v] = fmaf(x[i][v] * rstd, scale[i][v], shift[i][v]);
      if (c < r.width) store_values<V>(a.out + row * r.width + c, x[i]);
    }
    if (member == 0) a.new_mean[row] = mean, a.new_rstd[row] = rstd;
  }
}

template <class X, class Y, int V, int Vectors>
__global__ void __launch_bounds__(kThreads) gated_norm_backward_kernel(const GatedNorm<X, Y> a) {
  __shared__ float shared[32], columns[kThreads * V * Vectors];
  const Rows& r = a.rows;
  const int teams = blockDim.x / r.team, member = threadIdx.x % r.team;
  const int64_t batch = blockIdx.x / r.parts, part = blockIdx.x % r.parts;
  const int64_t end = min(r.tokens, (part + 1) * r.part_tokens);
  const float inverse_width = 1.0f / static_cast<float>(r.width);
  float gate[Vectors][V], scale[Vectors][V];
  float dgate[Vectors][V] = {}, dscale[Vectors][V] = {}, dshift[Vectors][V] = {};
  load_row<V, Vectors>(r, a.gate + batch * r.width, member, a.base, gate);
  load_row<V, Vectors>(r, a.scale + batch * r.width, member, 1.0f, scale);
  for (int64_t t = part * r.part_tokens + threadIdx.x / r.team; t < end; t += teams) {
    const int64_t row = batch * r.tokens + t;
    const float mean = a.mean[row], rstd = a.rstd[row];
    float x[Vectors][V] = {}, d[Vectors][V] = {}, y[Vectors][V] = {}, direct[Vectors][V] = {};
    float sum = 0, product = 0;
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
    for (int i = 0; i < Vectors; ++i)
#pragma unroll
      for (int v = 0; v < V; ++v) {  // beyond the width d is 0 and so is what is added
        x[i][v] = (x[i][v] - mean) * rstd;
        dshift[i][v] += d[i][v];
        dscale[i][v] = fmaf(d[i][v], x[i][v], dscale[i][v]);
        d[i][v] *= scale[i][v];
        sum += d[i][v];
        product = fmaf(d[i][v], x[i][v], product);
      }
    const float2 both = team_sums(make_float2(sum, product), r.team, shared);
    sum = both.x * inverse_width, product = both.y * inverse_width;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int64_t c = column_of<V>(member, i, r.team), at = row * r.width + c;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        d[i][v] = fmaf(rstd, d[i][v] - sum - x[i][v] * product, direct[i][v]);
        dgate[i][v] = fmaf(d[i][v], y[i][v], dgate[i][v]);
        y[i][v] = d[i][v] * gate[i][v];
      }
      if (c >= r.width) continue;
      store_values<V>(a.dx + at, d[i]);
      store_values<V>(a.dy + at, y[i]);
    }
  }
  const int64_t at = static_cast<int64_t>(blockIdx.x) * r.width;
  sum_teams<V, Vectors>(r, dgate, columns, a.dgate + at);
  sum_teams<V, Vectors>(r, dscale, columns, a.dscale + at);
  sum_teams<V, Vectors>(r, dshift, columns, a.dshift + at);
}

template <class X, class Y>
cudaError_t launch_rows(const RowSizes& s, GatedNorm<X, Y> a, bool backward, cudaStream_t stream) {
  const auto fits = [](const auto* p) { return aligned(p, 4 * static_cast<int64_t>(sizeof *p)); };
  const bool fours = fits(a.x) && fits(a.dsum) && fits(a.y) && fits(a.dout) && fits(a.sum) && fits(a.dx) &&
                     fits(a.out) && fits(a.dy);
  return with_vectors(s, fours, [&]<int V, int Vectors>() {
    a.rows = rows_of(s, V * Vectors);
    if (s.batch * a.rows.parts > INT32_MAX) return cudaErrorInvalidValue;
    const unsigned blocks = static_cast<unsigned>(s.batch * a.rows.parts), threads = a.rows.threads();
    if (backward)
      gated_norm_backward_kernel<X, Y, V, Vectors><<<blocks, threads, 0, stream>>>(a);
    else
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
    a.scale = p.scale, a.shift = p.shift, a.eps = p.eps, a.sum = static_cast<X*>(p.sum);
    a.out = static_cast<Y*>(p.out), a.new_mean = p.mean, a.new_rstd = p.rstd;
    return launch_rows<X, Y>(p.sizes, a, false, stream);
  });
}

cudaError_t gated_norm_backward(const GatedNormBackwardParams& p, cudaStream_t stream) {
  const RowSizes& s = p.sizes;
  if (!valid(s) || s.width > kMaxNormWidth) return cudaErrorInvalidValue;
  if (s.batch == 0) return cudaSuccess;
  const int parts = norm_parts(s);
  float* const outs[] = {p.dgate, p.dscale, p.dshift};
  const auto sums = [&](int i) { return parts == 1 ? outs[i] : p.scratch + i * s.batch * parts * s.width; };
  cudaError_t status = with_dtypes(p.x_dtype, p.y_dtype, [&](auto x, auto y) {
    using X = decltype(x);
    using Y = decltype(y);
    GatedNorm<X, Y> a{};
    a.x = static_cast<const X*>(p.sum), a.dsum = static_cast<const X*>(p.dsum);
    a.y = static_cast<const Y*>(p.y), a.dout = static_cast<const Y*>(p.dout);
    a.gate = p.gate, a.base = p.base, a.scale = p.scale, a.mean = p.mean, a.rstd = p.rstd;
    a.dx = static_cast<X*>(p.dx), a.dy = static_cast<Y*>(p.dy);
    a.dgate = sums(0), a.dscale = sums(1), a.dshift = sums(2);
    return launch_rows<X, Y>(s, a, true, stream);
  });
  for (int i = 0; i < 3 && status == cudaSuccess && parts > 1; ++i)
    status = fold(sums(i), outs[i], s.batch, parts, s.width, 1.0f, stream);
  return status;
}

}  // namespace pom::kernels
