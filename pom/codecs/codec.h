// What turns pictures and clips into latents and back: pixels, or an autoencoder from a folder of diffusers'.
// Shapes: pictures (B, 3, H, W) in [-1, 1], latents (B, C, H / factor, W / factor); clips (B, 3, T, H, W),
// their latents (B, C, T', H / factor, W / factor).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "pom/codecs/codec_config.h"
#include "pom/io/folder_swap.h"

namespace pom::codecs {

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

// Where an autoencoder runs, and how.
struct CodecOptions {
  c10::Device device = c10::kCPU;
  at::ScalarType dtype = at::kFloat;  // of the network; what comes and goes is fp32
  // How clips are encoded: "cached", a chunk of 8 frames after the other, or "alone", each chunk as if
  // nothing came before it, which is how the latents of V-DiPoM's authors were made.
  std::string chunks = "cached";
  std::int64_t memory = 0;  // bytes that decoding a picture may take before it is cut into strips; 0: any
};

class Codec {
 public:
  virtual ~Codec() = default;
  // Before anything is encoded or decoded; again to move. Pixels run anywhere.
  virtual void set_options(const CodecOptions&) {}
  // SHA-256 of config.json and weights in hexadecimal digits; empty where there are none.
  virtual std::string hash() const { return {}; }
  virtual std::int64_t weight_bytes() const { return 0; }  // as it runs
  // What the caller should tell about what was done since the last call: a result that was made again in
  // fp32.
  virtual std::vector<std::string> take_remarks() { return {}; }
  virtual std::int64_t channels() const = 0;  // of latents
  virtual std::int64_t picture_channels() const { return 3; }
  virtual std::int64_t factor() const = 0;  // pixels of a picture along one side of a latent pixel
  // A seed per picture is for codecs whose latent is a draw; none gives its mean. The result may share memory
  // with the input, here and below.
  virtual at::Tensor encode(const at::Tensor& pictures, std::span<const std::uint64_t> seeds = {}) const = 0;
  virtual at::Tensor decode(const at::Tensor& latents) const = 0;
  // Bytes that decoding one picture of this size takes beyond input and output, at once and with the options
  // of now; or so many frames of a clip that come in one call. Items come one after another where memory is
  // counted, on a CPU.
  virtual std::int64_t decode_bytes(std::int64_t height, std::int64_t width,
                                    std::int64_t frames = 1) const = 0;
  // A GPU takes pictures together as long as they need no more than this.
  static constexpr std::int64_t enough_at_once = std::int64_t{4} << 30;
  // The least that CodecOptions.memory can make of that.
  virtual std::int64_t least_decode_bytes(std::int64_t height, std::int64_t width,
                                          std::int64_t frames = 1) const {
    return decode_bytes(height, width, frames);
  }

  // Clips; unless a codec knows better, each frame is a picture. A seed is a clip's.
  virtual std::int64_t time_factor() const { return 1; }  // frames of a clip to one of its latent
  virtual at::Tensor encode_clips(const at::Tensor& clips, std::span<const std::uint64_t> seeds = {}) const;
  virtual std::unique_ptr<ClipDecoder> clip_decoder() const;  // lives no longer than the codec
};

// An autoencoder within a model's folder.
inline constexpr const char* vae_folder = "vae";

// `channels` is the network's; a pixel codec takes 1 (grey) or 3. `folder` is the model's, which holds the
// autoencoder `within`; or null for codecs that need no files. Throws pom::Error for a codec that does not go
// with the network, or is not there.
std::unique_ptr<Codec> make_codec(const CodecConfig& config, std::int64_t channels,
                                  const io::OpenFolder* folder = nullptr,
                                  const std::string& within = vae_folder);

}  // namespace pom::codecs
