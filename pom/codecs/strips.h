// Private to the room: the steps of an autoencoder over a picture, whole, or strip by strip where memory is
// short.
//
// A convolution sees one row beyond its own, so a strip begins with some rows more than it will give. A group
// norm sees the whole picture: its sums are taken first, strip by strip, by running the steps up to it; then
// it is a scale and a shift, known to all strips. So there are no seams, and the result is that of the whole
// picture up to rounding. What that costs is that steps run again: once for every norm since the last step
// whose result was kept whole, which is done wherever it fits.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/codecs/autoencoder_kl.h"

namespace pom::codecs {

at::Tensor run_whole(const VaeSteps& steps, const at::Tensor& x);

// `memory`: about so many bytes at once, with x and what is made, but for attention, which wants its whole
// input.
at::Tensor run_within(const VaeSteps& steps, const at::Tensor& x, std::int64_t memory);

// Bytes that run_whole takes beyond x at the most, by counting.
std::int64_t whole_bytes(const VaeSteps& steps, const at::Tensor& x);

}  // namespace pom::codecs
