// Private to the room: the picture itself is the latent.
#pragma once

#include "pom/codecs/codec.h"

namespace pom::codecs {

class Pixels : public Codec {
 public:
  Pixels(const CodecConfig& config, std::int64_t channels);

  std::int64_t channels() const override { return channels_; }
  std::int64_t picture_channels() const override { return channels_; }
  std::int64_t factor() const override { return 1; }
  at::Tensor encode(const at::Tensor& pictures, std::span<const std::uint64_t> seeds) const override;
  at::Tensor decode(const at::Tensor& latents) const override;
  std::int64_t decode_bytes(std::int64_t height, std::int64_t width, std::int64_t frames) const override;

 private:
  bool plain() const { return scale_ == 1 && shift_ == 0; }

  std::int64_t channels_;
  double scale_, shift_;
};

}  // namespace pom::codecs
