// What turns pictures and clips into latents and back. Pixels now; variational autoencoders with scale, shift
// and tiling have the same face. Shapes: pictures (B, 3, H, W) in [-1, 1], latents (B, C, H / factor, W /
// factor); clips (B, 3, T, H, W), their latents (B, C, T', H / factor, W / factor).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "pom/base/fields.h"

namespace pom::codecs {

// The "codec" of config.json.
struct CodecConfig {
  std::string kind = "pixels";
  double scale = 1;  // latent = (encoded - shift) * scale
  double shift = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "kind",
                .help = "codec between images and latents",
                .choices = {"pixels", "autoencoder-kl", "cogvideox"}},
          kind);
    visit(
        Field{
            .name = "scale", .help = "scale in latent = (image - shift) * scale", .least = 1e-6, .most = 1e6},
        scale);
    visit(
        Field{
            .name = "shift", .help = "shift in latent = (image - shift) * scale", .least = -1e6, .most = 1e6},
        shift);
  }
};

// Clips as they come: block after block of latents, with what must be remembered of those before.
class ClipDecoder {
 public:
  virtual ~ClipDecoder() = default;
  // The next latent frames (B, C, t, h, w) of B clips -> the frames that they complete, (B, 3, …, H, W).
  virtual at::Tensor next(const at::Tensor& latents) = 0;
  // What it remembers, to go on from elsewhere; empty where there is nothing to remember.
  virtual std::map<std::string, at::Tensor> state() const = 0;
  virtual void set_state(const std::map<std::string, at::Tensor>& state) = 0;
};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::int64_t channels() const = 0;  // of latents
  virtual std::int64_t factor() const = 0;    // pixels of a picture along one side of a latent pixel
  // A seed per picture is for codecs whose latent is a draw; none gives its mean. The result may share memory
  // with the input, here and below.
  virtual at::Tensor encode(const at::Tensor& pictures, std::span<const std::uint64_t> seeds = {}) const = 0;
  virtual at::Tensor decode(const at::Tensor& latents) const = 0;
  // Bytes that decoding one picture of this size takes beyond input and output, with tiling where it tiles.
  virtual std::int64_t decode_bytes(std::int64_t height, std::int64_t width) const = 0;

  // Clips; unless a codec knows better, each frame is a picture. A seed is a clip's.
  virtual std::int64_t time_factor() const { return 1; }  // frames of a clip to one of its latent
  virtual at::Tensor encode_clips(const at::Tensor& clips, std::span<const std::uint64_t> seeds = {}) const;
  virtual std::unique_ptr<ClipDecoder> clip_decoder() const;  // lives no longer than the codec
};

// `channels` is the network's; a pixel codec takes 1 (grey) or 3. Throws pom::Error for a codec that does not
// go with it.
std::unique_ptr<Codec> make_codec(const CodecConfig& config, std::int64_t channels);

}  // namespace pom::codecs
