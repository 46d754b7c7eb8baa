// An autoencoder as what makes data sets needs it: pictures or clips in, mean and log-variance out, unscaled.
// z latent channels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/codecs/codec.h"

namespace pom::codecs {

class MomentEncoder {
 public:
  virtual ~MomentEncoder() = default;

  virtual std::string kind() const = 0;  // of codec_kinds()
  virtual bool of_clips() const = 0;
  virtual std::int64_t channels() const = 0;  // z
  virtual std::int64_t factor() const = 0;    // pixels to a side of a latent pixel
  virtual std::int64_t latent_frames(
      std::int64_t frames) const = 0;  // of a clip; an error where it cannot be
  virtual double scale() const = 0;    // that config.json gives
  virtual double shift() const = 0;
  virtual std::string hash() const = 0;  // reads all weights the first time
  virtual std::vector<std::string> take_remarks() = 0;
  // (B, 3, H, W) or (B, 3, T, H, W) in [-1, 1], fp32 -> (B, 2 z, …), fp32 on the input's device.
  virtual at::Tensor moments(const at::Tensor& items) const = 0;
};

// The folder of an autoencoder as diffusers writes it, or a model's folder that has one in vae/.
std::unique_ptr<MomentEncoder> open_moment_encoder(const std::string& folder, const CodecOptions& options);

}  // namespace pom::codecs
