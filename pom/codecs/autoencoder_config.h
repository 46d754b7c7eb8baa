// Private to the room: what config.json of diffusers' AutoencoderKL says (SD 1.x, sd-vae-ft-*, SDXL, SD3,
// FLUX), and which tensors follow from it. z latent channels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pom/base/fields.h"
#include "pom/codecs/weight_folder.h"

namespace pom::codecs {

struct AutoencoderConfig {
  std::string class_name = "AutoencoderKL";
  std::int64_t in_channels = 3, out_channels = 3, latent_channels = 4, norm_num_groups = 32;
  std::int64_t layers_per_block = 1;
  std::vector<std::int64_t> block_out_channels = {64};
  std::string act_fn = "silu";
  std::vector<std::string> down_block_types = {"DownEncoderBlock2D"}, up_block_types = {"UpDecoderBlock2D"};
  bool use_quant_conv = true, use_post_quant_conv = true, mid_block_add_attention = true;
  double scaling_factor = 0.18215, shift_factor = 0;
  bool force_upcast = true;
  std::vector<std::int64_t> sample_size = {32};
  std::vector<double> latents_mean, latents_std;  // empty, or one for each latent channel

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr double most = 65536;
    visit(Field{.name = "_class_name", .help = "class of diffusers", .choices = {"AutoencoderKL"}},
          class_name);
    visit(Field{.name = "in_channels", .help = "of a picture", .least = 1, .most = 16}, in_channels);
    visit(Field{.name = "out_channels", .help = "of a decoded picture", .least = 1, .most = 16},
          out_channels);
    visit(Field{.name = "latent_channels", .help = "of a latent", .least = 1, .most = 4096}, latent_channels);
    visit(Field{.name = "norm_num_groups", .help = "groups of a norm", .least = 1, .most = most},
          norm_num_groups);
    visit(Field{.name = "layers_per_block", .help = "resnets of a level", .least = 1, .most = 64},
          layers_per_block);
    visit(Field{.name = "block_out_channels", .help = "channels of the levels", .least = 1, .most = most},
          block_out_channels);
    visit(Field{.name = "act_fn", .help = "activation", .choices = {"silu", "swish"}}, act_fn);
    visit(Field{.name = "down_block_types",
                .help = "kinds of the encoder's levels",
                .choices = {"DownEncoderBlock2D"}},
          down_block_types);
    visit(Field{.name = "up_block_types",
                .help = "kinds of the decoder's levels",
                .choices = {"UpDecoderBlock2D"}},
          up_block_types);
    visit(Field{.name = "use_quant_conv", .help = "1x1 convolution behind the encoder"}, use_quant_conv);
    visit(Field{.name = "use_post_quant_conv", .help = "1x1 convolution before the decoder"},
          use_post_quant_conv);
    visit(Field{.name = "mid_block_add_attention", .help = "attention in the middle"},
          mid_block_add_attention);
    visit(Field{.name = "scaling_factor", .help = "latents are multiplied by it", .least = 1e-6, .most = 1e6},
          scaling_factor);
    visit(Field{.name = "shift_factor", .help = "taken off latents first", .least = -1e6, .most = 1e6},
          shift_factor);
    visit(Field{.name = "force_upcast", .help = "fp16 is not enough"}, force_upcast);
    visit(Field{.name = "sample_size",
                .help = "side of the pictures it was trained with",
                .least = 1,
                .most = most,
                .one_or_more = true},
          sample_size);
  }

  std::int64_t levels() const { return static_cast<std::int64_t>(block_out_channels.size()); }
  std::int64_t factor() const {
    return std::int64_t{1} << (levels() - 1);
  }  // pixels of a latent pixel's side
};

// From the text of config.json; what cannot be is an error that begins with `source`.
AutoencoderConfig read_autoencoder_config(const std::string& text, const std::string& source);

std::vector<TensorSpec> autoencoder_tensors(const AutoencoderConfig& config);

// Names that older diffusers wrote.
WeightRules autoencoder_rules();

}  // namespace pom::codecs
