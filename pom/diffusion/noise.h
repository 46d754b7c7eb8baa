// A picture's noise from its seed: where sampling starts, and what stochastic samplers add in a step. A value
// is a function of the picture's seed, the step and the index within the picture, so the batch does not
// matter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/sampler.h"

namespace pom::diffusion {

// x (B, …), one seed for each of the B pictures. Made on the host in fp32 and copied to x's device and dtype.
void fill_latents(at::Tensor& x, std::span<const std::uint64_t> seeds);

// The same for the noise of step `step` of a sampler.
void fill_step_noise(at::Tensor& x, std::span<const std::uint64_t> seeds, std::uint32_t step);

// What sample() takes, for pictures with these seeds.
StepNoise step_noise(std::vector<std::uint64_t> seeds);

}  // namespace pom::diffusion
