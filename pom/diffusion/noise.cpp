#include "pom/diffusion/noise.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"

namespace pom::diffusion {
namespace {

constexpr std::int64_t kChunk = 1 << 13;  // values: the unit that threads share out

struct Address {
  std::span<const std::uint64_t> seeds;
  std::uint32_t purpose, step;
  std::int64_t first;  // index of the first value
};

void fill_host(float* out, std::int64_t size, const Address& address) {
  const std::int64_t chunks = (size + kChunk - 1) / kChunk;
  const auto pictures = static_cast<std::int64_t>(address.seeds.size());
  at::parallel_for(0, pictures * chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t picture = i / chunks, first = i % chunks * kChunk;
      const NoiseKey key{address.seeds[static_cast<std::size_t>(picture)], address.purpose, address.step};
      fill_normal(out + picture * size + first, std::min(kChunk, size - first), key, address.first + first);
    }
  });
}

void fill(const char* operation, at::Tensor& x, const Address& address) {
  check(x.dim() >= 1 && x.size(0) == static_cast<std::int64_t>(address.seeds.size()), operation,
        ": seeds: expected one for each image of shape ", x.sizes(), ", got ", address.seeds.size());
  check(x.is_floating_point(), operation, ": x: expected floating point, got ", x.scalar_type());
  if (x.numel() == 0) return;
  const std::int64_t size = x.numel() / x.size(0);
  if (x.device().is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous())
    return fill_host(x.data_ptr<float>(), size, address);
  const at::Tensor host = at::empty(x.sizes(), at::TensorOptions().dtype(at::kFloat));
  fill_host(host.data_ptr<float>(), size, address);
  x.copy_(host);
}

}  // namespace

void fill_latents(at::Tensor& x, std::span<const std::uint64_t> seeds, std::int64_t first) {
  fill("fill_latents", x, {seeds, noise_for::latent, 0, first});
}

void fill_step_noise(at::Tensor& x, std::span<const std::uint64_t> seeds, std::uint32_t step,
                     std::int64_t first) {
  fill("fill_step_noise", x, {seeds, noise_for::sampler, step, first});
}

StepNoise step_noise(std::vector<std::uint64_t> seeds, std::int64_t first) {
  return [seeds = std::move(seeds), first](at::Tensor& out, std::uint32_t step) {
    fill_step_noise(out, seeds, step, first);
  };
}

}  // namespace pom::diffusion
