// Private to the room: what AutoencoderKL's decoder holds at once, by counting. Without weights, so that a
// forecast needs none.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "pom/codecs/autoencoder_config.h"

namespace pom::codecs {

struct DecoderMemory {
  std::int64_t whole = 0;  // bytes at the most beside latents and picture, the picture at once
  std::int64_t least = 0;  // and in strips, which can be had within this or any larger number
};
DecoderMemory decoder_memory(const AutoencoderConfig& config, std::int64_t height, std::int64_t width,
                             c10::Device device, at::ScalarType dtype);

// Of all tensors as they lie where they run: on a CPU 3x3 kernels are packed as 4x4, those of upsamplings as
// 3x3, in fp32.
std::int64_t autoencoder_weight_bytes(const AutoencoderConfig& config, c10::Device device,
                                      at::ScalarType dtype);

}  // namespace pom::codecs
