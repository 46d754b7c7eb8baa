// A block takes a part of the pixels of one batch item; its threads are rows of C / V words, V channels of 16
// bytes each, so that a thread keeps its channels for all its pixels: factors and sums stay in registers.
#include "pom/kernels/common/columns.cuh"
#include "pom/kernels/common/launch.cuh"
#include "pom/kernels/portable/group_norm.h"

namespace pom::kernels {
namespace {

constexpr int kNormThreads = 256;

template <class T>
constexpr int kWord = 16 / sizeof(T);

int word_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? 4 : 8;
}

// Where a thread stands: its first channel, and the pixels first, first + step, … below end.
template <class T>
struct Walk {
  int words, channel;
  int64_t first, end, step;
  bool idle;

  __device__ __forceinline__ Walk(const PixelSizes& s, int parts) {
    words = static_cast<int>(s.channels) / kWord<T>;
    const int rows = kNormThreads / words, row = threadIdx.x / words;
    channel = (threadIdx.x % words) * kWord<T>;
    const int64_t part = (s.pixels + parts - 1) / parts, begin = blockIdx.x * part;
    first = begin + row, step = rows;
    end = begin + part < s.pixels ? begin + part : s.pixels;
    idle = row >= rows;
  }
};

// Sums of a thread's channels over its pixels -> sums of groups over the part, in one order.
template <int V>
__device__ __forceinline__ void fold_groups(const PixelSizes& s, const float (&sum)[V],
                                            const float (&square)[V], int words, int channel, bool idle,
                                            float* slot) {
  extern __shared__ float shared[];  // (rows, C, 2)
  const int channels = static_cast<int>(s.channels), rows = kNormThreads / words, row = threadIdx.x / words;
  if (!idle)
#pragma unroll
    for (int v = 0; v < V; ++v) {
      shared[(row * channels + channel + v) * 2] = sum[v];
      shared[(row * channels + channel + v) * 2 + 1] = square[v];
    }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * channels; i += kNormThreads)
    for (int r = 1; r < rows; ++r) shared[i] += shared[r * 2 * channels + i];
  __syncthreads();
  const int each = channels / static_cast<int>(s.groups);
  for (int i = threadIdx.x; i < 2 * s.groups; i += kNormThreads) {
    const float* from = shared + (i / 2) * each * 2 + i % 2;
    float total = 0;
    for (int c = 0; c < each; ++c) total += from[2 * c];
    slot[i] = total;
  }
}

// Rows of one image of a folded upsampling, or plain ones.
struct Plain {
  __device__ __forceinline__ int64_t operator()(int64_t n, int64_t pixel, const PixelSizes& s) const {
    return (n * s.pixels + pixel) * s.channels;
  }
};
struct Parities {
  int64_t height, width;
  __device__ __forceinline__ int64_t operator()(int64_t n, int64_t pixel, const PixelSizes& s) const {
    const int64_t y = pixel / (2 * width), x = pixel - y * 2 * width;
    const int64_t row = y / 2 + y % 2, column = x / 2 + x % 2, parity = y % 2 * 2 + x % 2;
    return (((n * (height + 1) + row) * (width + 1) + column) * 4 + parity) * s.channels;
  }
};

template <class T, class Source>
__global__ void __launch_bounds__(kNormThreads)
    complete_kernel(const CompleteParams p, int parts, Source source) {
  constexpr int V = kWord<T>;
  wait_for_before();
  let_next_start();
  const Walk<T> walk(p.sizes, parts);
  const int64_t n = blockIdx.y;
  float bias[V] = {}, sum[V] = {}, square[V] = {};
  if (p.bias != nullptr && !walk.idle)
#pragma unroll
    for (int v = 0; v < V; ++v) bias[v] = p.bias[walk.channel + v];
  if (!walk.idle)
#pragma unroll 4
    for (int64_t pixel = walk.first; pixel < walk.end; pixel += walk.step) {
      const int64_t at = (n * p.sizes.pixels + pixel) * p.sizes.channels + walk.channel;
      float x[V];
      load_values<V>(static_cast<const T*>(p.x) + source(n, pixel, p.sizes) + walk.channel, x);
#pragma unroll
      for (int v = 0; v < V; ++v) x[v] += bias[v];
      if (p.other != nullptr) {
        float other[V];
        load_values<V>(static_cast<const T*>(p.other) + at, other);
#pragma unroll
        for (int v = 0; v < V; ++v) x[v] += other[v];
      }
      if (p.out != nullptr) store_values<V>(static_cast<T*>(p.out) + at, x);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (p.out != nullptr) x[v] = raised(lowered<T>(x[v]));  // the sums are of what is stored
        sum[v] += x[v];
        square[v] = fmaf(x[v], x[v], square[v]);
      }
    }
  if (p.sums != nullptr)
    fold_groups<V>(p.sizes, sum, square, walk.words, walk.channel, walk.idle,
                   p.sums + (n * parts + blockIdx.x) * p.sizes.groups * 2);
}

// A warp for each group: its lanes take the parts in turn, in fp64.
__global__ void __launch_bounds__(kNormThreads) factors_kernel(const NormFactorsParams p) {
  wait_for_before();
  let_next_start();
  const int64_t n = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, groups = static_cast<int>(p.sizes.groups);
  const int each = static_cast<int>(p.sizes.channels) / groups;
  const double count = static_cast<double>(p.sizes.pixels) * each;
  for (int group = warp; group < groups; group += kNormThreads / 32) {
    double sum = 0, square = 0;
    for (int part = lane; part < p.parts; part += 32) {
      const float2 both = reinterpret_cast<const float2*>(p.sums)[(n * p.parts + part) * groups + group];
      sum += both.x, square += both.y;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      square += __shfl_xor_sync(0xffffffffu, square, offset);
    }
    const double mean = sum / count, variance = square / count - mean * mean;
    const double rstd = rsqrt((variance > 0 ? variance : 0) + static_cast<double>(p.epsilon));
    for (int c = group * each + lane; c < (group + 1) * each; c += 32) {
      const double factor = rstd * p.weight[c], bias = p.bias != nullptr ? p.bias[c] : 0.0f;
      float* to = p.scale_shift + (n * p.sizes.channels + c) * 2;
      to[0] = static_cast<float>(factor);
      to[1] = static_cast<float>(p.shift[c] + (bias - mean) * factor);
    }
  }
}

template <class T>
__device__ __forceinline__ float silu_of(float x) {
  if constexpr (std::is_same_v<T, float>) return x / (1.0f + expf(-x));
  return x * __fdividef(1.0f, 1.0f + __expf(-x));
}

__device__ __forceinline__ int64_t nearest_pixel(const NearestMaps& m, int64_t pixel) {
  const int64_t x = pixel % m.width, row = pixel / m.width, y = row % m.height, t = row / m.height;
  int64_t frame = 0;
  if (m.split)
    frame = t == 0 ? 0 : 1 + (t - 1) * (m.latent_frames - 1) / (m.frames - 1);
  else
    frame = t * m.latent_frames / m.frames;
  return (frame * m.latent_height + y * m.latent_height / m.height) * m.latent_width +
         x * m.latent_width / m.width;
}

template <class T, bool Maps>
__global__ void __launch_bounds__(kNormThreads) apply_kernel(const ApplyNormParams p, int parts) {
  constexpr int V = kWord<T>;
  wait_for_before();
  let_next_start();
  const Walk<T> walk(p.sizes, parts);
  if (walk.idle) return;
  const int64_t n = blockIdx.y;
  const NearestMaps& m = p.maps;
  const int64_t latent_pixels = m.latent_frames * m.latent_height * m.latent_width;
  float scale[V], shift[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float2 both =
        reinterpret_cast<const float2*>(p.scale_shift)[n * p.sizes.channels + walk.channel + v];
    scale[v] = both.x, shift[v] = both.y;
  }
#pragma unroll 4
  for (int64_t pixel = walk.first; pixel < walk.end; pixel += walk.step) {
    const int64_t at = (n * p.sizes.pixels + pixel) * p.sizes.channels + walk.channel;
    float x[V];
    load_values<V>(static_cast<const T*>(p.x) + at, x);
#pragma unroll
    for (int v = 0; v < V; ++v) x[v] = fmaf(x[v], scale[v], shift[v]);
    if constexpr (Maps) {
      const int64_t from = (n * latent_pixels + nearest_pixel(m, pixel)) * p.sizes.channels + walk.channel;
      float factor[V], offset[V];
      load_values<V>(static_cast<const T*>(m.scale) + from, factor);
      load_values<V>(static_cast<const T*>(m.shift) + from, offset);
#pragma unroll
      for (int v = 0; v < V; ++v) x[v] = fmaf(x[v], factor[v], offset[v]);
    }
    if (p.silu)
#pragma unroll
      for (int v = 0; v < V; ++v) x[v] = silu_of<T>(x[v]);
    store_values<V>(static_cast<T*>(p.out) + at, x);
  }
}

// ---- launches ----

template <class With>
cudaError_t with_dtype(Dtype dtype, const With& with) {
  if (dtype == Dtype::bf16) return with(__nv_bfloat16());
  if (dtype == Dtype::fp16) return with(__half());
  if (dtype == Dtype::fp32) return with(float());
  return cudaErrorInvalidValue;
}

dim3 grid_of(const PixelSizes& s, int parts) {
  return dim3(static_cast<unsigned>(parts), static_cast<unsigned>(s.batch));
}

constexpr int64_t kMostBatch = 65535;

bool usable(const PixelSizes& s, Dtype dtype) {
  return fits_group_norm(s, dtype) && s.batch <= kMostBatch;
}

template <class Source>
cudaError_t launch_complete(const CompleteParams& p, const Source& source, cudaStream_t stream) {
  if (p.sizes.batch == 0 || p.sizes.pixels == 0) return cudaSuccess;
  if (!usable(p.sizes, p.dtype) || p.x == nullptr) return cudaErrorInvalidValue;
  const int parts = group_norm_parts(p.sizes, p.dtype);
  return with_dtype(p.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int words = static_cast<int>(p.sizes.channels) / kWord<T>;
    const size_t shared =
        p.sums != nullptr ? static_cast<size_t>(kNormThreads / words) * p.sizes.channels * 2 * sizeof(float)
                          : 0;
    return launch(complete_kernel<T, Source>, grid_of(p.sizes, parts), dim3(kNormThreads), shared, stream, 1,
                  p, parts, source);
  });
}

}  // namespace

bool fits_group_norm(const PixelSizes& s, Dtype dtype) {
  const int word = word_of(dtype);
  return s.channels > 0 && s.channels % word == 0 && s.channels / word <= kNormThreads && s.groups > 0 &&
         s.channels % s.groups == 0 && dtype != Dtype::e4m3;
}

int group_norm_parts(const PixelSizes& s, Dtype dtype) {
  const int64_t rows = kNormThreads / (s.channels / word_of(dtype));
  constexpr int64_t kMost = 512, kEach = 16;  // pixels of a thread
  const int64_t parts = (s.pixels + rows * kEach - 1) / (rows * kEach);
  return static_cast<int>(parts < 1 ? 1 : parts > kMost ? kMost : parts);
}

cudaError_t complete(const CompleteParams& p, cudaStream_t stream) {
  return launch_complete(p, Plain{}, stream);
}

cudaError_t shuffle_parities(const ShuffleParams& p, cudaStream_t stream) {
  if (p.complete.other != nullptr || p.complete.sizes.pixels != 4 * p.height * p.width ||
      p.complete.out == p.complete.x)
    return cudaErrorInvalidValue;
  return launch_complete(p.complete, Parities{p.height, p.width}, stream);
}

cudaError_t norm_factors(const NormFactorsParams& p, cudaStream_t stream) {
  if (p.sizes.batch == 0) return cudaSuccess;
  if (p.sums == nullptr || p.weight == nullptr || p.shift == nullptr || p.scale_shift == nullptr ||
      p.parts < 1 || p.sizes.batch > kMostBatch)
    return cudaErrorInvalidValue;
  return launch(factors_kernel, dim3(static_cast<unsigned>(p.sizes.batch)), dim3(kNormThreads), 0, stream, 1,
                p);
}

cudaError_t apply_norm(const ApplyNormParams& p, cudaStream_t stream) {
  if (p.sizes.batch == 0 || p.sizes.pixels == 0) return cudaSuccess;
  if (!usable(p.sizes, p.dtype) || p.x == nullptr || p.out == nullptr || p.scale_shift == nullptr)
    return cudaErrorInvalidValue;
  const int parts = group_norm_parts(p.sizes, p.dtype);
  return with_dtype(p.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = p.maps.scale != nullptr ? apply_kernel<T, true> : apply_kernel<T, false>;
    return launch(kernel, grid_of(p.sizes, parts), dim3(kNormThreads), 0, stream, 1, p, parts);
  });
}

}  // namespace pom::kernels
