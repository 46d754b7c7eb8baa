// The oracle of clips that are sampled block by block: all blocks at once, by the training network's parallel
// form, whose mask can be written out.
#pragma once

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/diffusion/noise.h"
#include "pom/generate/block_sampler.h"
#include "pom/models/vdipom.h"

namespace pom::generate {
// Draws every block of `clips` with the numbers that are its own.
template <class Draw>
void each_block(at::Tensor& clips, std::int64_t frames, Draw&& draw) {
  for (std::int64_t at = 0; at < clips.size(2); at += frames) {
    at::Tensor block = clips.narrow(2, at, frames);
    draw(block, at / frames * (block.numel() / block.size(0)));
  }
}

// text (B, L, width) and mask (B, L), or one text for each block, (B, blocks, L, width) and (B, blocks, L);
// -> (B, C, blocks * pt, H, W).
inline at::Tensor sample_clip(models::VDiPoM& network, const BatchSampling& sampling, std::int64_t blocks,
                              const at::Tensor& text, const at::Tensor& mask) {
  const at::NoGradGuard no_gradients;
  const models::NetworkConfig& config = network->config();
  const std::int64_t B = static_cast<std::int64_t>(sampling.seeds.size()), pt = config.patch_time;
  check(B >= 1, "sample_clip: seeds: expected at least one clip, got none");
  check(blocks >= 1, "sample_clip: blocks: expected at least one, got ", blocks);
  at::Tensor x = at::empty({B, config.channels, blocks * pt, sampling.height, sampling.width},
                           network->no_text.options().dtype(at::kFloat));
  each_block(x, pt, [&](at::Tensor& block, std::int64_t first) {
    diffusion::fill_latents(block, sampling.seeds, first);
  });
  const auto step_noise = [&](at::Tensor& out, std::uint32_t step) {
    each_block(out, pt, [&](at::Tensor& block, std::int64_t first) {
      diffusion::fill_step_noise(block, sampling.seeds, step, first);
    });
  };
  const at::Tensor texts = at::cat({text, text}), masks = at::cat({mask, at::zeros_like(mask)});
  const at::ScalarType dtype = network->no_text.scalar_type();
  const auto answers = [&](const at::Tensor& noisy, double t, bool both) {
    const at::Tensor all = (both ? at::cat({noisy, noisy}) : noisy).to(dtype);
    const at::Tensor times = at::full({all.size(0)}, t, all.options().dtype(at::kDouble));
    const at::Tensor answer = network->forward(all, times, both ? texts : text, both ? masks : mask);
    return dtype == at::kDouble ? answer : answer.to(at::kFloat);
  };
  return diffusion::sample(diffusion::guide(answers, sampling.guidance), x, sampling.path, sampling.sampler,
                           sampling.options, step_noise);
}

}  // namespace pom::generate
