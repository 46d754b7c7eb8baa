// A picture's noise from its seed: where sampling starts, and what stochastic samplers add in a step. A value
// is a function of the picture's seed, the step and the index within the picture, so the batch does not
// matter. A block of a clip has the indices from `first` on, which is its number times its size: how many
// blocks are drawn at a time does not matter either.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/sampler.h"

namespace pom::diffusion {

// x (B, …), one seed for each of the B pictures. Made on the host in fp32 and copied to x's device and dtype.
void fill_latents(at::Tensor& x, std::span<const std::uint64_t> seeds, std::int64_t first = 0);

// The same for the noise of step `step` of a sampler.
void fill_step_noise(at::Tensor& x, std::span<const std::uint64_t> seeds, std::uint32_t step,
                     std::int64_t first = 0);

// What sample() takes, for pictures with these seeds.
StepNoise step_noise(std::vector<std::uint64_t> seeds, std::int64_t first = 0);

}  // namespace pom::diffusion
