// A team of threads holds a row in registers, four values at a time: a warp up to 1536 values, a block up to
// 8192, so that a row is read once and written once. Rows that are longer, or whose start or width do not
// allow words of four values, are walked in global memory by a block. d width.
#include <cfloat>
#include <cuda_fp8.h>

#include "pom/kernels/common/columns.cuh"
#include "pom/kernels/common/launch.cuh"
#include "pom/kernels/portable/residual_norm.h"

namespace pom::kernels {
namespace {

constexpr int kBlock = 128;          // small blocks, so that few rows still reach every processor
constexpr float kGreatest = 448.0f;  // of e4m3

// ---- sums and maxima over a team: a warp of a block of kBlock threads, or a whole block ----

struct Plus {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <int Team, class Fold>
__device__ __forceinline__ float team_fold(float value, Fold fold, float* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = fold(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if constexpr (Team == 32) return value;
  __syncthreads();  // the one before may still be read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
#pragma unroll
  for (int warp = 1; warp < Team / 32; ++warp) value = fold(value, shared[warp]);
  return value;
}

// ---- values of a dtype known at run time: the branch is the same for all threads ----

template <class Use>
__device__ __forceinline__ void with_stored(Dtype dtype, const void* p, const Use& use) {
  if (dtype == Dtype::bf16)
    use(static_cast<const __nv_bfloat16*>(p));
  else if (dtype == Dtype::fp16)
    use(static_cast<const __half*>(p));
  else
    use(static_cast<const float*>(p));
}
template <class Use>
__device__ __forceinline__ void with_stored(Dtype dtype, void* p, const Use& use) {
  if (dtype == Dtype::bf16)
    use(static_cast<__nv_bfloat16*>(p));
  else if (dtype == Dtype::fp16)
    use(static_cast<__half*>(p));
  else
    use(static_cast<float*>(p));
}

__device__ __forceinline__ float stored_value(Dtype dtype, const void* p, int64_t i) {
  float value = 0;
  with_stored(dtype, p, [&](const auto* values) { value = raised(values[i]); });
  return value;
}
__device__ __forceinline__ void store_value(Dtype dtype, void* p, int64_t i, float value) {
  if (dtype == Dtype::e4m3)
    static_cast<__nv_fp8_storage_t*>(p)[i] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  else
    with_stored(dtype, p, [&](auto* values) {
      values[i] = lowered<std::remove_reference_t<decltype(*values)>>(value);
    });
}

// A row of the stream passes once: it need not push the modulation out of the first cache.
__device__ __forceinline__ void load_passing(const float* p, float (&values)[4]) {
  asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "l"(p)
               : "memory");
}

// What a row of e4m3 is divided by, and what its values are multiplied with: finite for the smallest rows.
struct RowScale {
  float scale, inverse;
};
__device__ __forceinline__ RowScale scale_of(float greatest) {
  if (greatest == 0) return {1.0f, 1.0f};
  return {greatest / kGreatest, fminf(kGreatest / greatest, FLT_MAX)};
}

// ---- a row in registers ----

// Vectors member, member + Team, … of four values each; those beyond the width are 0.
template <int Team, int Vectors>
struct Row {
  float values[Vectors][4];
  int width, member;

  __device__ __forceinline__ int column(int i) const { return 4 * (i * Team + member); }
  __device__ __forceinline__ bool inside(int i) const { return column(i) < width; }

  template <class T>
  __device__ __forceinline__ void read(const T* row) {
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      values[i][0] = values[i][1] = values[i][2] = values[i][3] = 0;
      if (!inside(i)) continue;
      if constexpr (std::is_same_v<T, float>)
        load_passing(row + column(i), values[i]);
      else
        load_values<4>(row + column(i), values[i]);
    }
  }

  template <class T>
  __device__ __forceinline__ void add(const T* row, const float* gate) {
    Word<T, 4> words[Vectors];
#pragma unroll
    for (int i = 0; i < Vectors; ++i)
      if (inside(i)) words[i] = load<4>(row + column(i));
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      if (!inside(i)) continue;
      float y[4], g[4];
      unpack<T, 4>(words[i], y);
      load_values<4>(gate + column(i), g);
#pragma unroll
      for (int v = 0; v < 4; ++v) values[i][v] = fmaf(y[v], g[v], values[i][v]);
    }
  }

  template <class T>
  __device__ __forceinline__ void write(T* row) const {
#pragma unroll
    for (int i = 0; i < Vectors; ++i)
      if (inside(i)) store_values<4>(row + column(i), values[i]);
  }
  __device__ __forceinline__ void write_e4m3(uint8_t* row, float factor) const {
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      if (!inside(i)) continue;
      const float2 low = {values[i][0] * factor, values[i][1] * factor};
      const float2 high = {values[i][2] * factor, values[i][3] * factor};
      const uint32_t first = __nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, __NV_E4M3);
      const uint32_t second = __nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, __NV_E4M3);
      *reinterpret_cast<uint32_t*>(row + column(i)) = first | second << 16;
    }
  }
  // In e4m3: the row's scale into *scale too.
  __device__ __forceinline__ void write_scaled(uint8_t* row, float* scale, float* shared) const {
    float greatest = 0;
#pragma unroll
    for (int i = 0; i < Vectors; ++i)
#pragma unroll
      for (int v = 0; v < 4; ++v) greatest = fmaxf(greatest, fabsf(values[i][v]));
    const RowScale s = scale_of(team_fold<Team>(greatest, Max(), shared));
    write_e4m3(row, s.inverse);
    if (member == 0) *scale = s.scale;
  }

  // The mean taken off and divided by the deviation; then modulated. What is beyond the width stays 0.
  __device__ __forceinline__ void normalize(const float* scale, const float* shift, float eps,
                                            float* shared) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < Vectors; ++i)
#pragma unroll
      for (int v = 0; v < 4; ++v) sum += values[i][v];
    const float mean = team_fold<Team>(sum, Plus(), shared) / static_cast<float>(width);
#pragma unroll
    for (int i = 0; i < Vectors; ++i)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        if (!inside(i)) continue;
        values[i][v] -= mean;
        squares = fmaf(values[i][v], values[i][v], squares);
      }
    const float variance = team_fold<Team>(squares, Plus(), shared) / static_cast<float>(width);
    const float rstd = 1.0f / sqrtf(variance + eps);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      if (!inside(i)) continue;
      float factor[4], offset[4];
      load_values<4>(scale + column(i), factor);
      load_values<4>(shift + column(i), offset);
#pragma unroll
      for (int v = 0; v < 4; ++v) values[i][v] = fmaf(values[i][v] * rstd, 1.0f + factor[v], offset[v]);
    }
  }
};

__device__ __forceinline__ const void* row_at(const void* p, Dtype dtype, int64_t first) {
  return static_cast<const char*>(p) + first * (dtype == Dtype::fp32 ? 4 : dtype == Dtype::e4m3 ? 1 : 2);
}
__device__ __forceinline__ void* row_at(void* p, Dtype dtype, int64_t first) {
  return const_cast<void*>(row_at(static_cast<const void*>(p), dtype, first));
}

template <int Team>
constexpr int kBlockOf = Team == 32 ? kBlock : Team;
// The row of this thread's team; past the last row where the last block is not full.
template <int Team>
__device__ __forceinline__ int64_t row_of() {
  return static_cast<int64_t>(blockIdx.x) * (kBlockOf<Team> / Team) + threadIdx.x / Team;
}

template <int Team, int Vectors>
__global__ void __launch_bounds__(kBlockOf<Team>) norm_kernel(const StreamNormParams p) {
  __shared__ float shared[8];
  wait_for_before();
  let_next_start();
  const int64_t at = row_of<Team>();
  if (at >= p.batch * p.tokens) return;  // whole warps, and never in a block that is one team
  const int64_t first = at * p.width, modulation = at / p.tokens * p.stride;
  Row<Team, Vectors> row;
  row.width = static_cast<int>(p.width), row.member = threadIdx.x % Team;
  row.read(p.x + first);
  if (p.y != nullptr) {
    with_stored(p.y_dtype, row_at(p.y, p.y_dtype, first),
                [&](const auto* y) { row.add(y, p.gate + modulation); });
    row.write(p.x + first);
  }
  if (p.out == nullptr) return;
  row.normalize(p.scale + modulation, p.shift + modulation, p.eps, shared);
  void* const out = row_at(p.out, p.out_dtype, first);
  if (p.out_dtype == Dtype::e4m3)
    row.write_scaled(static_cast<uint8_t*>(out), p.row_scale + at, shared);
  else
    with_stored(p.out_dtype, out, [&](auto* to) { row.write(to); });
}

template <int Team, int Vectors>
__global__ void __launch_bounds__(kBlockOf<Team>) quantize_kernel(const QuantizeParams p) {
  __shared__ float shared[8];
  wait_for_before();
  let_next_start();
  const int64_t at = row_of<Team>(), first = at * p.width;
  if (at >= p.rows) return;
  Row<Team, Vectors> row;
  row.width = static_cast<int>(p.width), row.member = threadIdx.x % Team;
  with_stored(p.dtype, row_at(p.x, p.dtype, first), [&](const auto* x) { row.read(x); });
  row.write_scaled(static_cast<uint8_t*>(p.out) + first, p.scale + at, shared);
}

// ---- a row in global memory: a block, every thread its own columns in every walk ----

__global__ void __launch_bounds__(kBlock) norm_walk_kernel(const StreamNormParams p) {
  __shared__ float shared[8];
  wait_for_before();
  let_next_start();
  const int64_t at = blockIdx.x, d = p.width, first = at * d, modulation = at / p.tokens * p.stride;
  float* const x = p.x + first;
  float sum = 0, squares = 0, greatest = 0;
  for (int64_t c = threadIdx.x; c < d; c += kBlock) {
    if (p.y != nullptr) x[c] = fmaf(stored_value(p.y_dtype, p.y, first + c), p.gate[modulation + c], x[c]);
    sum += x[c];
  }
  if (p.out == nullptr) return;
  const float mean = team_fold<kBlock>(sum, Plus(), shared) / static_cast<float>(d);
  for (int64_t c = threadIdx.x; c < d; c += kBlock) squares = fmaf(x[c] - mean, x[c] - mean, squares);
  const float variance = team_fold<kBlock>(squares, Plus(), shared) / static_cast<float>(d);
  const float rstd = 1.0f / sqrtf(variance + p.eps);
  const auto value = [&](int64_t c) {
    return fmaf((x[c] - mean) * rstd, 1.0f + p.scale[modulation + c], p.shift[modulation + c]);
  };
  RowScale s{1.0f, 1.0f};
  if (p.out_dtype == Dtype::e4m3) {
    for (int64_t c = threadIdx.x; c < d; c += kBlock) greatest = fmaxf(greatest, fabsf(value(c)));
    s = scale_of(team_fold<kBlock>(greatest, Max(), shared));
    if (threadIdx.x == 0) p.row_scale[at] = s.scale;
  }
  for (int64_t c = threadIdx.x; c < d; c += kBlock)
    store_value(p.out_dtype, p.out, first + c, value(c) * s.inverse);
}

__global__ void __launch_bounds__(kBlock) quantize_walk_kernel(const QuantizeParams p) {
  __shared__ float shared[8];
  wait_for_before();
  let_next_start();
  const int64_t first = blockIdx.x * p.width;
  float greatest = 0;
  for (int64_t c = threadIdx.x; c < p.width; c += kBlock)
    greatest = fmaxf(greatest, fabsf(stored_value(p.dtype, p.x, first + c)));
  const RowScale s = scale_of(team_fold<kBlock>(greatest, Max(), shared));
  for (int64_t c = threadIdx.x; c < p.width; c += kBlock)
    store_value(Dtype::e4m3, p.out, first + c, stored_value(p.dtype, p.x, first + c) * s.inverse);
  if (threadIdx.x == 0) p.scale[blockIdx.x] = s.scale;
}

// ---- the greatest of all values ----

template <int V, class T>
__device__ __forceinline__ float greatest_of(const T* x, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kBlock;
  const int64_t me = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x, vectors = count / V;
  float greatest = 0;
  for (int64_t i = me; i < vectors; i += step) {
    float values[V];
    load_values<V>(x + i * V, values);
#pragma unroll
    for (int v = 0; v < V; ++v) greatest = fmaxf(greatest, fabsf(values[v]));
  }
  for (int64_t i = vectors * V + me; i < count; i += step) greatest = fmaxf(greatest, fabsf(raised(x[i])));
  return greatest;
}

// Of floats that are not negative the greatest is that of the greatest bits: the order of blocks is nothing.
__global__ void __launch_bounds__(kBlock) largest_kernel(const LargestParams p, bool words) {
  __shared__ float shared[8];
  wait_for_before();
  let_next_start();
  float greatest = 0;
  with_stored(p.dtype, p.x, [&](const auto* x) {
    constexpr int V = 16 / sizeof(*x);
    greatest = words ? greatest_of<V>(x, p.count) : greatest_of<1>(x, p.count);
  });
  greatest = team_fold<kBlock>(greatest, Max(), shared);
  if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(p.largest), __float_as_int(greatest / kGreatest));
}

// ---- launches ----

bool stored_dtype(Dtype dtype) {
  return dtype == Dtype::fp32 || dtype == Dtype::bf16 || dtype == Dtype::fp16;
}
int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? 4 : dtype == Dtype::e4m3 ? 1 : 2;
}
bool fits(const void* p, Dtype dtype) {
  return aligned(p, 4 * bytes_of(dtype));
}

template <int Team, int Vectors, class Params>
cudaError_t launch_rows(void (*kernel)(Params), const Params& p, int64_t rows, cudaStream_t stream) {
  constexpr int each = kBlockOf<Team> / Team;
  const int64_t blocks = (rows + each - 1) / each;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  return launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kBlockOf<Team>), 0, stream, 1, p);
}

// with(team, vectors) of the smallest team that holds the row.
template <int Team, int Vectors>
struct Shape {
  static constexpr int team = Team, vectors = Vectors;
};
template <class With>
cudaError_t with_shape(int64_t width, const With& with) {
  if (width <= 3 * 128) return with(Shape<32, 3>());
  if (width <= 6 * 128) return with(Shape<32, 6>());
  if (width <= 9 * 128) return with(Shape<32, 9>());
  if (width <= 12 * 128) return with(Shape<32, 12>());
  if (width <= 9 * 512) return with(Shape<128, 9>());
  return with(Shape<256, 8>());
}
constexpr int64_t kHeld = 8 * 1024;  // the widest row in registers

bool valid(const StreamNormParams& p) {
  if (p.batch < 0 || p.tokens < 0 || p.width < 1 || p.x == nullptr) return false;
  if (p.y != nullptr && (p.gate == nullptr || !stored_dtype(p.y_dtype))) return false;
  if (p.out == nullptr) return true;
  if (p.scale == nullptr || p.shift == nullptr) return false;
  return stored_dtype(p.out_dtype) || (p.out_dtype == Dtype::e4m3 && p.row_scale != nullptr);
}
bool in_words(const StreamNormParams& p) {
  return p.width <= kHeld && p.width % 4 == 0 && fits(p.x, Dtype::fp32) && fits(p.y, p.y_dtype) &&
         fits(p.out, p.out_dtype) && p.stride % 4 == 0 && fits(p.gate, Dtype::fp32) &&
         fits(p.scale, Dtype::fp32) && fits(p.shift, Dtype::fp32);
}

}  // namespace

cudaError_t stream_norm(const StreamNormParams& p, cudaStream_t stream) {
  if (p.batch == 0 || p.tokens == 0) return cudaSuccess;
  if (!valid(p)) return cudaErrorInvalidValue;
  if (p.y == nullptr && p.out == nullptr) return cudaSuccess;
  const int64_t rows = p.batch * p.tokens;
  if (!in_words(p)) return launch_rows<kBlock, 1>(norm_walk_kernel, p, rows, stream);
  return with_shape(p.width, [&](auto shape) {
    using S = decltype(shape);
    return launch_rows<S::team, S::vectors>(norm_kernel<S::team, S::vectors>, p, rows, stream);
  });
}

cudaError_t quantize_rows(const QuantizeParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (p.rows < 0 || p.width < 1 || p.x == nullptr || p.out == nullptr || p.scale == nullptr ||
      !stored_dtype(p.dtype))
    return cudaErrorInvalidValue;
  if (p.width > kHeld || p.width % 4 != 0 || !fits(p.x, p.dtype) || !fits(p.out, Dtype::e4m3))
    return launch_rows<kBlock, 1>(quantize_walk_kernel, p, p.rows, stream);
  return with_shape(p.width, [&](auto shape) {
    using S = decltype(shape);
    return launch_rows<S::team, S::vectors>(quantize_kernel<S::team, S::vectors>, p, p.rows, stream);
  });
}

cudaError_t largest_value(const LargestParams& p, cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  if (p.count < 0 || p.x == nullptr || p.largest == nullptr || !stored_dtype(p.dtype))
    return cudaErrorInvalidValue;
  constexpr int64_t kEnough = 2048, kEach = kBlock * 8;
  const int64_t blocks = (p.count + kEach - 1) / kEach;
  const dim3 grid(static_cast<unsigned>(blocks < kEnough ? blocks : kEnough));
  return launch(largest_kernel, grid, dim3(kBlock), 0, stream, 1, p, aligned(p.x, 16));
}

}  // namespace pom::kernels
