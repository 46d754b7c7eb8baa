#include "pom/codecs/pixels.h"

#include <ATen/core/Tensor.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

void check_shape(const char* where, const at::Tensor& x, std::int64_t channels) {
  check(x.dim() == 4 && x.size(1) == channels && x.is_floating_point(), where,
        ": expected floating point (B, ", channels, ", H, W), got ", x.scalar_type(), " of shape ",
        x.sizes());
}

}  // namespace

Pixels::Pixels(const CodecConfig& config, std::int64_t channels)
    : channels_(channels), scale_(config.scale), shift_(config.shift) {
  check(channels == 1 || channels == 3,
        "codec: pixels: expected a network of 1 channel (grey) or 3 (red, green, blue), got ", channels);
}

at::Tensor Pixels::encode(const at::Tensor& pictures, std::span<const std::uint64_t>) const {
  check_shape("encode: pictures", pictures, channels_);
  return plain() ? pictures : pictures.sub(shift_).mul_(scale_);
}

at::Tensor Pixels::decode(const at::Tensor& latents) const {
  check_shape("decode: latents", latents, channels_);
  return plain() ? latents : latents.div(scale_).add_(shift_);
}

std::int64_t Pixels::decode_bytes(std::int64_t height, std::int64_t width, std::int64_t frames) const {
  return plain() ? 0 : frames * channels_ * height * width * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace pom::codecs
