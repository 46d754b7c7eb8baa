#include "pom/train/objective.h"

#include <cmath>
#include <numeric>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "pom/base/noise.h"
#include "pom/diffusion/sampler.h"
#include "pom/train/device_noise.h"

namespace pom::train {
namespace {

// Integers coprime to `total` jump through it without a repeat: neighbours get times far apart.
std::int64_t spread(std::int64_t i, std::int64_t total) {
  std::int64_t stride = static_cast<std::int64_t>(static_cast<double>(total) * 0.618) | 1;
  while (std::gcd(stride, total) != 1) stride += 2;
  return i * stride % total;
}

}  // namespace

Objective::Objective(const Recipe& recipe)
    : path_(diffusion::Path::named(recipe.diffusion.path,
                                   recipe.diffusion.path == "epsilon" ? recipe.diffusion.variance : "")),
      loss_(diffusion::Loss::named(recipe.loss.kind, recipe.loss.gamma)),
      logit_normal_(recipe.batch.time == "logit-normal"),
      time_shift_(recipe.batch.time_shift) {}

Draw Objective::draw(const DrawKey& key, const at::Tensor& x0, std::int64_t first) const {
  const std::int64_t B = x0.size(0);
  const NoiseKey time_key{key.seed, noise_for::train_time, key.draw};
  at::Tensor times = at::empty({B}, at::kDouble);
  double* t = times.data_ptr<double>();
  for (std::int64_t i = 0; i < B; ++i)
    t[i] = diffusion::shifted(logit_normal_ ? 1 / (1 + std::exp(-double{normal_at(time_key, first + i)}))
                                            : double{uniform_at(time_key, first + i)},
                              time_shift_);
  const NoiseKey noise_key{key.seed, noise_for::train_noise, key.draw};
  return {normal_noise(noise_key, x0, first), sent_to(x0.device(), times.to(x0.scalar_type()))};
}

Draw Objective::draw_evenly(const DrawKey& key, const at::Tensor& x0, std::int64_t first,
                            std::int64_t total) const {
  const std::int64_t B = x0.size(0);
  at::Tensor times = at::empty({B}, at::kDouble);
  double* t = times.data_ptr<double>();
  for (std::int64_t i = 0; i < B; ++i)
    t[i] = (static_cast<double>(spread(first + i, total)) + 0.5) / static_cast<double>(total);
  const NoiseKey noise_key{key.seed, noise_for::train_noise, key.draw};
  return {normal_noise(noise_key, x0, first), sent_to(x0.device(), times.to(x0.scalar_type()))};
}

at::Tensor Objective::losses(TrainingModel& model, const at::Tensor& x0, const Draw& draw,
                             const Condition& told) const {
  const at::Tensor x = path_.mix(x0, draw.noise, draw.times);
  const at::Tensor output = model.forward(x, draw.times, told);
  return loss_(path_, output, x0, draw.noise, draw.times);
}

}  // namespace pom::train
