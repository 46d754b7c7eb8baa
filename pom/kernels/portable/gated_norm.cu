// A team of threads holds a row in registers from the sum to the norm, and back: see row_teams.cuh; wide rows
// have kernels of their own in gated_norm_wide.cuh.
#include "pom/kernels/portable/gated_norm_wide.cuh"

namespace pom::kernels {
namespace {

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

// What a bias beside y changes: dgate += bias dsums, and dbias = (base + gate) dsums over all pictures.
struct Bias {
  int64_t batch, width;
  const float *gate, *bias, *dsums;
  float *dgate, *dbias;
  float base;
};

// Some pictures to each row of threads; their sums are added in the order of the rows.
constexpr int kBiasColumns = 32, kBiasRows = 16;

__global__ void __launch_bounds__(kBiasColumns* kBiasRows) bias_kernel(const Bias a) {
  __shared__ float sums[kBiasRows][kBiasColumns];
  const int lane = static_cast<int>(threadIdx.x) % kBiasColumns,
            row = static_cast<int>(threadIdx.x) / kBiasColumns;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kBiasColumns + lane;
  float sum = 0;
  if (c < a.width) {
    const float bias = a.bias[c];
    for (int64_t b = row; b < a.batch; b += kBiasRows) {
      const int64_t at = b * a.width + c;
      const float d = a.dsums[at];
      a.dgate[at] = fmaf(bias, d, a.dgate[at]);
      sum = fmaf(a.base + a.gate[at], d, sum);
    }
  }
  sums[row][lane] = sum;
  __syncthreads();
  if (row != 0 || c >= a.width) return;
  for (int r = 1; r < kBiasRows; ++r) sum += sums[r][lane];
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
  if (takes_wide(s, a, backward))
    return backward ? launch_wide_backward(s, a, stream) : launch_wide(s, a, stream);
  return with_vectors(s, fours, [&]<int V, int Vectors>() {
    a.rows = rows_of(s, V * Vectors, backward ? gated_parts(s) : row_parts(s, kManyBlocks));
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
  const int parts = gated_parts(s);
  return s.batch * s.width * ((parts > 1 ? (again ? 4 : 3) * parts : 0) + (again ? 1 : 0));
}

cudaError_t gated_norm_backward(const GatedNormBackwardParams& p, cudaStream_t stream) {
  const RowSizes& s = p.sizes;
  if (!valid(s) || s.width > kMaxNormWidth) return cudaErrorInvalidValue;
  if ((p.again && !p.shift) || !p.bias != !p.dbias || (p.bias && !p.again)) return cudaErrorInvalidValue;
  if (s.batch == 0) return cudaSuccess;
  const int parts = gated_parts(s);
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
  bias_kernel<<<static_cast<unsigned>((s.width + kBiasColumns - 1) / kBiasColumns), kBiasColumns * kBiasRows,
                0, stream>>>(b);
  return cudaGetLastError();
}

}  // namespace pom::kernels
