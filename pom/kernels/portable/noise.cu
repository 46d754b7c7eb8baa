// Counter-based noise: a thread makes the four values of a Philox block and strides over the blocks of a
// picture; the second grid dimension strides over pictures. Aligned blocks are stored as one float4, ragged
// ends one by one.
#include <algorithm>

#include "pom/base/noise_math.h"
#include "pom/kernels/portable/noise.h"

namespace pom::kernels {
namespace {

using noise_math::Draw;
using noise_math::Four;
using noise_math::Words;

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;  // a few waves of any GPU; the loops stride over the rest

template <Draw draw>
__global__ void __launch_bounds__(kThreads) fill_kernel(NoiseParams p) {
  const int64_t end = p.first_position + p.count;
  const int64_t first_block = p.first_position / 4, blocks = (end + 3) / 4 - first_block;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t picture = blockIdx.y; picture < p.pictures; picture += gridDim.y) {
    const uint64_t seed = p.key.seed + static_cast<uint64_t>(picture);
    float* row = p.out + picture * p.stride;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < blocks; i += threads) {
      const int64_t at = 4 * (first_block + i);  // the position of the first of the four
      const Words words =
          noise_math::words_at(draw, seed, p.key.purpose, p.key.step, static_cast<uint64_t>(at) / 4);
      const Four four =
          draw == Draw::normal ? noise_math::normals_from(words) : noise_math::uniforms_from(words);
      float* out = row + (at - p.first_position);
      if (at >= p.first_position && at + 4 <= end && reinterpret_cast<uintptr_t>(out) % sizeof(float4) == 0) {
        *reinterpret_cast<float4*>(out) = make_float4(four.a, four.b, four.c, four.d);
      } else {
        const float values[] = {four.a, four.b, four.c, four.d};
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (at + j >= p.first_position && at + j < end) out[j] = values[j];
      }
    }
  }
}

template <Draw draw>
cudaError_t launch(NoiseParams p, cudaStream_t stream) {
  if (p.stride == 0) p.stride = p.count;
  if (p.count < 0 || p.pictures < 0 || p.first_position < 0) return cudaErrorInvalidValue;
  if (p.count > INT64_MAX - 64 - p.first_position) return cudaErrorInvalidValue;
  if (p.pictures > 1 && p.stride < p.count) return cudaErrorInvalidValue;
  if (p.count == 0 || p.pictures == 0) return cudaSuccess;
  const int64_t wanted = (p.count / 4 + 1 + kThreads) / kThreads;
  const dim3 grid(static_cast<unsigned>(std::min(wanted, kMostBlocks)),
                  static_cast<unsigned>(std::min<int64_t>(p.pictures, 65535)));
  fill_kernel<draw><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t fill_normal(const NoiseParams& params, cudaStream_t stream) {
  return launch<Draw::normal>(params, stream);
}

cudaError_t fill_uniform(const NoiseParams& params, cudaStream_t stream) {
  return launch<Draw::uniform>(params, stream);
}

}  // namespace pom::kernels
