#include "pom/train/device_noise.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "pom/ops/cuda/noise.h"

namespace pom::train {

at::Tensor normal_noise(const NoiseKey& key, const at::Tensor& x, std::int64_t first) {
  const std::int64_t each = x.size(0) == 0 ? 0 : x.numel() / x.size(0);
  if (std::optional<at::Tensor> noise = ops::cuda::normal_noise(key, x, first * each)) return *noise;
  at::Tensor noise = at::empty(x.sizes(), at::kFloat);
  float* out = noise.data_ptr<float>();
  constexpr std::int64_t grain = 1 << 14;
  at::parallel_for(0, x.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    fill_normal(out + begin, end - begin, key, first * each + begin);
  });
  return noise.to(x.device(), x.scalar_type());
}

}  // namespace pom::train
