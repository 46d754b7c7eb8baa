// Private to the room: CogVideoX's causal autoencoder of clips (diffusers' AutoencoderKLCogVideoX), unscaled.
// A clip goes through in chunks of 8 frames or 2 latents, each with what the causal convolutions remember of
// those before it, so that memory does not grow with the clip. Norms are taken over a chunk: how a clip is
// cut is part of the network. B clips, z channels of latents, sides h = H / 8, w = W / 8.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/codecs/cogvideox_config.h"
#include "pom/codecs/video_layers.h"

namespace pom::codecs {

// One way through the network: frames to moments, or latents to frames.
struct VideoLevel {
  std::vector<VideoResnet> resnets;
  Conv down;  // where the level ends in a smaller or a larger one
  UpConv up;
  bool time = false;  // whether that goes for frames, too
};

struct VideoPath {
  CausalConv conv_in, conv_out;
  std::vector<VideoResnet> middle;
  std::vector<VideoLevel> levels;
  VideoNorm norm_out;
  std::int64_t groups = 32;
  CausalPlaces places;  // of what it remembers
};

class CogVideoXStream;

// Copies share the weights.
class CogVideoX {
 public:
  enum class Way { encode, decode };

  // Weights are taken from the source, in its dtype and on its device, when a way is first gone.
  CogVideoX(CogVideoXConfig config, TensorSource source, at::TensorOptions options);

  const CogVideoXConfig& config() const { return config_; }
  const at::TensorOptions& options() const { return options_; }  // dtype and device

  // clips (B, 3, T, H, W) -> (B, 2 z, t, h, w): means, and after them logarithms of variances.
  at::Tensor encode_moments(const at::Tensor& clips) const;
  // latents (B, z, t, h, w) -> (B, 3, T, H, W)
  at::Tensor decode(const at::Tensor& latents) const;

  // Clips in pieces.
  CogVideoXStream encoder() const;
  CogVideoXStream decoder() const;

  const VideoPath& path(Way way) const;

 private:
  struct Paths {
    std::once_flag read[2];
    VideoPath paths[2];
  };

  CogVideoXConfig config_;
  TensorSource source_;
  at::TensorOptions options_;
  std::shared_ptr<Paths> paths_ = std::make_shared<Paths>();
};

// B clips on their way through the network, piece after piece. A piece is cut into chunks as a whole clip is:
// pieces of 8 frames, or of 2 latents, are the chunks of a clip whose number of them is even.
class CogVideoXStream {
 public:
  using State = std::map<std::string, at::Tensor>;

  CogVideoXStream(CogVideoX network, CogVideoX::Way way);

  const CogVideoX& network() const { return network_; }

  // Whether nothing comes after it; then nothing is kept.
  enum class Then { more, end };
  // The next frames (B, 3, T, H, W) -> moments, or latents (B, z, t, h, w) -> frames, in the network's dtype.
  at::Tensor next(const at::Tensor& piece, Then then = Then::more);

  bool started() const { return !clips_.empty(); }
  // The two frames that each causal convolution remembers, (B, C, 2, H, W), by its name in the files of
  // weights; nothing where nothing came yet. Tensors are not changed by what comes next.
  State state() const;
  void set_state(const State& state);

 private:
  void check_piece(const at::Tensor& piece) const;
  std::vector<std::int64_t> remembered_shape(const CausalPlace& place) const;

  CogVideoX network_;
  CogVideoX::Way way_;
  const VideoPath* path_;
  std::vector<CausalCaches> clips_;
  std::int64_t height_ = 0, width_ = 0;  // of pieces
  bool failed_ = false;                  // in the middle of a piece, of which some is remembered
};

}  // namespace pom::codecs
