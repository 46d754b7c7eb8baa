// Private to the room: what config.json says of an AutoencoderKLCogVideoX, and what follows from it: the
// tensors that the network has and how many frames make how many latents. Fields that diffusers has and that
// are not here do not change the network.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/fields.h"
#include "pom/codecs/weight_folder.h"

namespace pom::codecs {

struct CogVideoXConfig {
  // Frames and latents that go through the network at a time; the remainder joins the first ones. The norms
  // are taken over so many, so that other numbers make another network.
  static constexpr std::int64_t frames_at_once = 8, latents_at_once = 2;

  std::string class_name = "AutoencoderKLCogVideoX";
  std::int64_t in_channels = 3, out_channels = 3, latent_channels = 16;
  std::vector<std::string> down_block_types = std::vector<std::string>(4, "CogVideoXDownBlock3D");
  std::vector<std::string> up_block_types = std::vector<std::string>(4, "CogVideoXUpBlock3D");
  std::vector<std::int64_t> block_out_channels = {128, 256, 256, 512};
  std::int64_t layers_per_block = 3, norm_num_groups = 32;
  std::string act_fn = "silu", pad_mode = "first";
  double norm_eps = 1e-6;  // of the norms in the encoder's resnets; all others have 1e-6
  double temporal_compression_ratio = 4;
  std::int64_t sample_height = 480, sample_width = 720;  // tiles are half of it
  double scaling_factor = 1.15258426;                    // for the caller
  std::optional<double> shift_factor;
  bool use_quant_conv = false, use_post_quant_conv = false, invert_scale_latents = false;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr double most = 1 << 16;  // of channels and sides
    visit(Field{.name = "_class_name", .help = "the class", .choices = {"AutoencoderKLCogVideoX"}},
          class_name);
    visit(Field{.name = "in_channels", .help = "channels of frames", .least = 1, .most = most}, in_channels);
    visit(Field{.name = "out_channels", .help = "channels of decoded frames", .least = 1, .most = most},
          out_channels);
    visit(Field{.name = "latent_channels", .help = "channels of latents", .least = 1, .most = most},
          latent_channels);
    visit(Field{.name = "down_block_types",
                .help = "kinds of the encoder's blocks",
                .choices = {"CogVideoXDownBlock3D"}},
          down_block_types);
    visit(Field{.name = "up_block_types",
                .help = "kinds of the decoder's blocks",
                .choices = {"CogVideoXUpBlock3D"}},
          up_block_types);
    visit(Field{.name = "block_out_channels", .help = "channels by level", .least = 1, .most = most},
          block_out_channels);
    visit(Field{.name = "layers_per_block", .help = "resnets of a block", .least = 1, .most = 64},
          layers_per_block);
    visit(Field{.name = "norm_num_groups", .help = "groups of the norms", .least = 1, .most = most},
          norm_num_groups);
    visit(Field{.name = "act_fn", .help = "activation", .choices = {"silu", "swish"}}, act_fn);
    visit(Field{.name = "pad_mode", .help = "frames before the first", .choices = {"first"}}, pad_mode);
    visit(Field{.name = "norm_eps", .help = "epsilon of the encoder's norms", .least = 0, .most = 1},
          norm_eps);
    visit(Field{.name = "temporal_compression_ratio",
                .help = "frames of a clip to one of its latent",
                .least = 1,
                .most = 256},
          temporal_compression_ratio);
    visit(Field{.name = "sample_height", .help = "two tiles high", .least = 1, .most = most}, sample_height);
    visit(Field{.name = "sample_width", .help = "two tiles wide", .least = 1, .most = most}, sample_width);
    visit(Field{.name = "scaling_factor", .help = "scale of latents", .least = 1e-6, .most = 1e6},
          scaling_factor);
    visit(Field{.name = "shift_factor", .help = "shift of latents", .least = -1e6, .most = 1e6},
          shift_factor);
    visit(Field{.name = "use_quant_conv", .help = "a convolution of moments"}, use_quant_conv);
    visit(Field{.name = "use_post_quant_conv", .help = "a convolution of latents"}, use_post_quant_conv);
    visit(Field{.name = "invert_scale_latents", .help = "for pipelines with a condition image"},
          invert_scale_latents);
  }

  std::int64_t levels() const { return static_cast<std::int64_t>(block_out_channels.size()); }
  std::int64_t channels_at(std::int64_t level) const {
    return block_out_channels[static_cast<std::size_t>(level)];
  }
  std::int64_t factor() const { return std::int64_t{1} << (levels() - 1); }  // pixels to a latent pixel
  std::int64_t time_levels() const;  // how many of the samplers take frames two by two
  std::int64_t time_factor() const { return std::int64_t{1} << time_levels(); }

  // Latents that so many frames make, and frames that so many latents make.
  std::int64_t latents_of(std::int64_t frames) const;
  std::int64_t frames_of(std::int64_t latents) const;
  // Whether as many frames come back.
  bool returns(std::int64_t frames) const;
};

// Throws pom::Error for what is no config of such a network.
CogVideoXConfig read_cogvideox_config(std::string_view text, std::string_view source);

// Every tensor of the network, with the encoder's before the decoder's.
std::vector<TensorSpec> cogvideox_tensors(const CogVideoXConfig& config);
// What files may hold beside them.
WeightRules cogvideox_rules();

// "8 frames", "9 or 16": numbers of frames near this one that come back.
std::string nearest_frames(const CogVideoXConfig& config, std::int64_t frames);

// How items (frames or latents) are cut into chunks: sizes, in order.
std::vector<std::int64_t> video_chunks(std::int64_t items, std::int64_t at_once);

}  // namespace pom::codecs
