// AutoencoderKL from a folder: the network in any dtype on any device, and as a Codec with scale and shift.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pom/codecs/autoencoder_config.h"
#include "pom/codecs/codec.h"
#include "pom/codecs/weight_folder.h"

namespace pom::codecs {

class AutoencoderKL;

// A folder of diffusers' AutoencoderKL, every tensor accounted for.
struct AutoencoderFolder {
  AutoencoderConfig config;
  WeightFolder weights;
};
AutoencoderFolder open_autoencoder(const io::OpenFolder& folder, const std::string& within);

// The network of the folder where it shall run.
std::unique_ptr<AutoencoderKL> read_autoencoder(const AutoencoderFolder& folder, c10::Device device,
                                                at::ScalarType dtype);

class AutoencoderCodec : public Codec {
 public:
  AutoencoderCodec(const CodecConfig& config, std::int64_t channels, AutoencoderFolder folder);
  ~AutoencoderCodec() override;

  void set_options(const CodecOptions& options) override;
  std::string hash() const override { return folder_.weights.hash(); }
  std::int64_t weight_bytes() const override;
  std::vector<std::string> take_remarks() override;

  std::int64_t channels() const override { return folder_.config.latent_channels; }
  std::int64_t factor() const override { return folder_.config.factor(); }
  at::Tensor encode(const at::Tensor& pictures, std::span<const std::uint64_t> seeds) const override;
  at::Tensor decode(const at::Tensor& latents) const override;
  std::int64_t decode_bytes(std::int64_t height, std::int64_t width, std::int64_t frames) const override;
  std::int64_t least_decode_bytes(std::int64_t height, std::int64_t width,
                                  std::int64_t frames) const override;
  at::Tensor encode_clips(const at::Tensor& clips, std::span<const std::uint64_t> seeds) const override;

  // Mean and log-variance (B, 2 z, h, w), unscaled: what data sets of latents store.
  at::Tensor moments(const at::Tensor& pictures) const;
  const AutoencoderConfig& config() const { return folder_.config; }

 private:
  AutoencoderKL& network() const;
  template <class Run>
  at::Tensor checked(const char* what, Run&& run) const;

  CodecConfig config_;
  AutoencoderFolder folder_;
  CodecOptions options_;
  // Read when it is first needed; the second one where the first gave what is not finite.
  mutable std::mutex mutex_;
  mutable std::unique_ptr<AutoencoderKL> network_, exact_;
  mutable std::vector<std::string> remarks_;
};

// A latent drawn from moments (B, 2 z, …): mean + exp(log-variance / 2) noise of each item's seed; without
// seeds the mean. The log-variance is clamped to [-30, 20].
at::Tensor drawn_latents(const at::Tensor& moments, std::span<const std::uint64_t> seeds);

}  // namespace pom::codecs
