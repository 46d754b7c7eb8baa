#include "pom/train/device_noise.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "pom/base/error.h"

#ifdef POM_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "pom/kernels/noise.h"
#endif

namespace pom::train {

at::Tensor normal_noise(const NoiseKey& key, const at::Tensor& x, std::int64_t first) {
  const std::int64_t each = x.size(0) == 0 ? 0 : x.numel() / x.size(0);
#ifdef POM_WITH_CUDA
  if (x.is_cuda()) {
    const c10::cuda::CUDAGuard guard(x.device());
    at::Tensor noise = at::empty(x.sizes(), x.options().dtype(at::kFloat));
    const kernels::NoiseParams params{
        .out = noise.data_ptr<float>(), .count = x.numel(), .key = key, .first_position = first * each};
    const cudaError_t error = kernels::fill_normal(params, c10::cuda::getCurrentCUDAStream());
    check(error == cudaSuccess, "train: noise: ", cudaGetErrorString(error));
    return noise.to(x.scalar_type());
  }
#endif
  at::Tensor noise = at::empty(x.sizes(), at::kFloat);
  float* out = noise.data_ptr<float>();
  constexpr std::int64_t grain = 1 << 14;
  at::parallel_for(0, x.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    fill_normal(out + begin, end - begin, key, first * each + begin);
  });
  return noise.to(x.device(), x.scalar_type());
}

}  // namespace pom::train
