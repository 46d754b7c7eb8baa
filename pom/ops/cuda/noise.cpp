#include "pom/ops/cuda/noise.h"

#include <ATen/ops/empty.h>

#include "pom/kernels/portable/noise.h"
#include "pom/ops/cuda/launch.h"

namespace pom::ops::cuda {

std::optional<at::Tensor> normal_noise(const NoiseKey& key, const at::Tensor& x,
                                       std::int64_t first_position) {
  if (!x.is_cuda()) return {};
  const detail::OnDevice device(x);
  at::Tensor noise = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  const kernels::NoiseParams params{
      .out = noise.data_ptr<float>(), .count = x.numel(), .key = key, .first_position = first_position};
  detail::check_launch("noise", kernels::fill_normal(params, device.stream()));
  return noise.to(x.scalar_type());
}

}  // namespace pom::ops::cuda
