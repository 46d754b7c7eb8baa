// How clips are sampled, said once for both ways of doing it: block by block (VideoStream), or all blocks at
// once (sample_clip). Both see the same noise, which is a block's own. B clips, C channels, T latent frames,
// pt frames of a block, H x W the latent, L tokens of text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/guidance.h"
#include "pom/diffusion/path.h"
#include "pom/diffusion/sampler.h"
#include "pom/models/vdipom.h"

namespace pom::generate {

struct ClipSampling {
  std::int64_t height = 0, width = 0;  // of the latent
  std::vector<std::uint64_t> seeds;    // one for each clip
  diffusion::Path path = diffusion::Path::flow();
  std::string sampler = "euler";
  diffusion::SamplerOptions options;
  diffusion::Guidance guidance;
};

// All blocks at once, by the network's parallel form. text (B, L, width) and mask (B, L), or one text for
// each block, (B, blocks, L, width) and (B, blocks, L); -> (B, C, blocks * pt, H, W).
at::Tensor sample_clip(models::VDiPoM& network, const ClipSampling& sampling, std::int64_t blocks,
                       const at::Tensor& text, const at::Tensor& mask, const diffusion::OnStep& on_step = {});

}  // namespace pom::generate
