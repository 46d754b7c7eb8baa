// Private to the room: CogVideoX's autoencoder as a codec, from a folder as diffusers writes it. 8 frames are
// 2 latents, and so a clip has 8 j frames, or 8 j + 1 of which the first is a latent of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/codecs/codec.h"
#include "pom/codecs/cogvideox.h"
#include "pom/codecs/weight_folder.h"

namespace pom::codecs {

struct CogVideoXOptions {
  at::ScalarType dtype = at::kFloat;  // fp64, fp32, bf16 or fp16
  at::Device device = at::kCPU;
  // How clips are encoded: "cached", a chunk of 8 frames after the other, or "alone", each chunk as if
  // nothing came before it, which is how the latents of V-DiPoM's authors were made.
  std::string chunks = "cached";
  std::function<void(const std::string&)> remark = {};  // told once where fp16 was not enough
};

class CogVideoXCodec : public Codec {
 public:
  // Checks config.json and the headers of the weights; values are read when they are needed.
  CogVideoXCodec(std::shared_ptr<WeightFolder> folder, const CodecConfig& codec,
                 CogVideoXOptions options = {});

  void set_options(const CodecOptions& options) override;
  std::string hash() const override { return folder_->hash(); }
  std::int64_t weight_bytes() const override;
  std::vector<std::string> take_remarks() override;

  const CogVideoXConfig& config() const { return network_.config(); }
  const CogVideoX& network() const { return network_; }
  const WeightFolder& folder() const { return *folder_; }

  std::int64_t channels() const override { return config().latent_channels; }
  std::int64_t picture_channels() const override { return config().in_channels; }
  std::int64_t factor() const override { return config().factor(); }
  std::int64_t time_factor() const override { return config().time_factor(); }

  // Pictures are clips of one frame. Results are fp32, fp64 in a network of that, on the input's device.
  at::Tensor encode(const at::Tensor& pictures, std::span<const std::uint64_t> seeds) const override;
  at::Tensor decode(const at::Tensor& latents) const override;
  at::Tensor encode_clips(const at::Tensor& clips, std::span<const std::uint64_t> seeds) const override;
  // Takes an even number of latents, as a rule two; an odd one only at first.
  std::unique_ptr<ClipDecoder> clip_decoder() const override;

  // Unscaled, as the files have it: moments (B, 2 z, t, h, w), and frames of whole clips of latents.
  at::Tensor encode_moments(const at::Tensor& clips) const;
  at::Tensor decode_clips(const at::Tensor& latents) const;

  std::int64_t decode_bytes(std::int64_t height, std::int64_t width, std::int64_t frames) const override;

  // For the decoder of clips: the same network in fp32, read when it is first wanted; whether that could help
  // where results are not finite; and the remark that it was wanted.
  const CogVideoX& wide() const;
  bool narrow() const;
  void tell_wide(const char* operation) const;
  double scale() const { return codec_.scale; }
  double shift() const { return codec_.shift; }

 private:
  template <class Run>
  at::Tensor of_each(const at::Tensor& clips, const char* operation, const Run& run) const;
  at::Tensor chunks_alone(const CogVideoX& network, const at::Tensor& clip) const;
  at::Tensor latents_from(const at::Tensor& moments, std::span<const std::uint64_t> seeds) const;
  at::Tensor encoded(const at::Tensor& clips) const;

  std::shared_ptr<WeightFolder> folder_;
  CodecConfig codec_;
  CogVideoXOptions options_;
  CogVideoX network_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<CogVideoX> wide_;
  mutable bool told_ = false;
  mutable std::vector<std::string> remarks_;
};

}  // namespace pom::codecs
