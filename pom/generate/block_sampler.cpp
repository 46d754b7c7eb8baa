#include "pom/generate/block_sampler.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/diffusion/noise.h"

namespace pom::generate {

BlockSampler::BlockSampler(models::Denoiser& network, BatchSampling sampling)
    : network_(&network), sampling_(std::move(sampling)) {
  check(!sampling_.seeds.empty(), "BlockSampler: seeds: expected at least one item, got none");
  sampling_.sampler = diffusion::canonical_sampler(sampling_.sampler);
  for (const double t : diffusion::evaluation_times(sampling_.sampler, sampling_.options))
    evaluations_.push_back({t, sampling_.guidance.acts_at(t)});
  network_->plan({.batch = std::ssize(sampling_.seeds),
                  .height = sampling_.height,
                  .width = sampling_.width,
                  .evaluations = evaluations_,
                  .blocks = sampling_.blocks,
                  .ranks = sampling_.ranks});
}

void BlockSampler::tell(const models::Condition& condition) {
  network_->tell(condition);
}

void BlockSampler::set_seeds(std::vector<std::uint64_t> seeds) {
  check(seeds.size() == sampling_.seeds.size(), "BlockSampler: seeds: expected ", sampling_.seeds.size(),
        ", got ", seeds.size());
  sampling_.seeds = std::move(seeds);
}

// Draws every block of the latents with the numbers that are its own.
template <class Draw>
void BlockSampler::each_block(at::Tensor& latents, Draw&& draw) const {
  if (latents.dim() == 4) return draw(latents, 0);  // images
  const std::int64_t pt = network_->config().patch_time;
  for (std::int64_t b = 0; b < latents.size(2) / pt; ++b) {
    at::Tensor one = latents.narrow(2, b * pt, pt);
    draw(one, (block() + b) * (one.numel() / one.size(0)));
  }
}

at::Tensor BlockSampler::noise_of(std::int64_t blocks) const {
  const models::NetworkConfig& config = network_->config();
  std::vector<std::int64_t> shape = {std::ssize(sampling_.seeds), config.channels};
  if (config.video()) shape.push_back(blocks * config.patch_time);
  shape.push_back(sampling_.height), shape.push_back(sampling_.width);
  at::Tensor x = at::empty(shape, at::TensorOptions(network_->device()).dtype(at::kFloat));
  each_block(
      x, [&](at::Tensor& one, std::int64_t first) { diffusion::fill_latents(one, sampling_.seeds, first); });
  return x;
}

at::Tensor BlockSampler::next(std::int64_t blocks, const SamplingHooks& hooks, const BlockStart& start) {
  const at::NoGradGuard no_gradients;
  check(blocks >= 1, "BlockSampler: blocks: expected at least one, got ", blocks);
  const diffusion::SamplerOptions& options = sampling_.options;
  at::Tensor x = start.noise.defined() ? start.noise : noise_of(blocks);
  if (start.init.defined() && options.t_start < 1)
    x = sampling_.path.mix(start.init, x, diffusion::shifted(options.t_start, options.shift));
  const auto step_noise = [&](at::Tensor& out, std::uint32_t step) {
    each_block(out, [&](at::Tensor& one, std::int64_t first) {
      diffusion::fill_step_noise(one, sampling_.seeds, step, first);
    });
  };
  std::size_t done = 0;
  const auto answers = [&](const at::Tensor& noisy, double t, bool both) {
    if (hooks.before) hooks.before();
    check(done < evaluations_.size() && evaluations_[done].t == t && evaluations_[done].both == both,
          "BlockSampler: evaluation ", done, ": expected what was planned, got time ", t);
    at::Tensor answer = (*network_)(noisy, static_cast<std::int64_t>(done++));
    if (hooks.after) hooks.after();
    return answer;
  };
  at::Tensor made = diffusion::sample(diffusion::guide(answers, sampling_.guidance), x, sampling_.path,
                                      sampling_.sampler, options, step_noise, hooks.on_step);
  network_->advance();
  return made;
}

}  // namespace pom::generate
