// Private to the room: diffusers' AutoencoderKL, the network. B pictures (B, 3, H, W) in [-1, 1]; latents (B,
// z, h, w) and moments (B, 2 z, h, w), mean and then log-variance, as the encoder gives them: unscaled.
// Results are of the input's dtype and on its device; the network runs in its own. Without gradients.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/codecs/autoencoder_config.h"
#include "pom/codecs/vae_layers.h"

namespace pom::codecs {

// Each half of the network is a list of steps, so that a picture can take them whole or in strips (strips.h).
struct DownConv {
  Conv conv;
};
struct OutConv {  // norm, SiLU, convolution
  GroupNorm norm;
  Conv conv;
};
using VaeStep = std::variant<Conv, DownConv, UpConv, Resnet, PixelAttention, OutConv>;
using VaeSteps = std::vector<VaeStep>;

class AutoencoderKL {
 public:
  // Every tensor is asked for once, in the dtype and on the device where it shall run.
  AutoencoderKL(AutoencoderConfig config, const TensorSource& source);

  const AutoencoderConfig& config() const { return config_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }

  at::Tensor encode(const at::Tensor& pictures) const;  // -> moments
  at::Tensor decode(const at::Tensor& latents) const;

  // One after another and in strips, so that about `memory` bytes are enough for what is there at once; the
  // same result up to rounding, as norms still see the whole picture. Where the memory is enough for the
  // whole, it is done whole.
  at::Tensor encode_within(const at::Tensor& pictures, std::int64_t memory) const;
  at::Tensor decode_within(const at::Tensor& latents, std::int64_t memory) const;

  // In overlapping tiles that are blended, as diffusers does it: neither norms nor attention see beyond a
  // tile.
  at::Tensor encode_tiled(const at::Tensor& pictures) const;
  at::Tensor decode_tiled(const at::Tensor& latents) const;

 private:
  void check_pictures(const at::Tensor& pictures) const;
  void check_latents(const at::Tensor& latents) const;
  at::Tensor as_input(const at::Tensor& x) const;

  AutoencoderConfig config_;
  at::ScalarType dtype_ = at::kFloat;
  at::Device device_ = at::kCPU;
  VaeSteps encoder_, decoder_;
};

}  // namespace pom::codecs
