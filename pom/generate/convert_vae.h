// Autoencoders in single files, as they are saved by those who trained them (LDM, SDXL, FLUX's `ae`,
// CogVideoX's SAT), as folders that diffusers and our codecs open.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pom/base/fields.h"
#include "pom/models/weights.h"

namespace pom::generate {

// config.json of such a folder. What the shapes tell is set by them, the rest by --set.
struct VaeConfig {
  std::string class_name = "AutoencoderKL";  // or AutoencoderKLCogVideoX
  std::string act_fn = "silu";
  std::int64_t in_channels = 3, out_channels = 3, latent_channels = 4;
  std::vector<std::int64_t> block_out_channels;
  std::vector<std::string> down_block_types, up_block_types;
  std::int64_t layers_per_block = 2, norm_num_groups = 32;
  double scaling_factor = 0;  // 0: not known
  std::optional<double> shift_factor;
  bool use_quant_conv = true, use_post_quant_conv = true;
  // Of pictures.
  bool mid_block_add_attention = true, force_upcast = true;
  std::int64_t sample_size = 512;
  // Of clips.
  std::int64_t sample_height = 480, sample_width = 720, temporal_compression_ratio = 4;
  double norm_eps = 1e-6;

  bool clips() const { return class_name == "AutoencoderKLCogVideoX"; }

  template <class Visit>
  void fields(Visit&& visit) {
    const bool video = clips();
    visit(Field{.name = "_class_name", .help = "diffusers' name of the autoencoder"}, class_name);
    visit(Field{.name = "act_fn", .help = "activation", .choices = {"silu"}}, act_fn);
    visit(Field{.name = "in_channels", .help = "channels in", .least = 1, .most = 4096}, in_channels);
    visit(Field{.name = "out_channels", .help = "channels out", .least = 1, .most = 4096}, out_channels);
    visit(Field{.name = "latent_channels", .help = "channels of latents", .least = 1, .most = 4096},
          latent_channels);
    visit(Field{.name = "block_out_channels", .help = "widths"}, block_out_channels);
    visit(Field{.name = "down_block_types", .help = "blocks of the encoder"}, down_block_types);
    visit(Field{.name = "up_block_types", .help = "blocks of the decoder"}, up_block_types);
    visit(Field{.name = "layers_per_block", .help = "layers of a block", .least = 1, .most = 64},
          layers_per_block);
    visit(Field{.name = "norm_num_groups", .help = "groups of the norms", .least = 1, .most = 4096},
          norm_num_groups);
    visit(Field{.name = "scaling_factor", .help = "scale of latents", .least = 0, .most = 1e6},
          scaling_factor);
    visit(Field{.name = "shift_factor", .help = "shift of latents", .least = -1e6, .most = 1e6},
          shift_factor);
    visit(Field{.name = "use_quant_conv", .help = "a last convolution of the encoder"}, use_quant_conv);
    visit(Field{.name = "use_post_quant_conv", .help = "a first convolution of the decoder"},
          use_post_quant_conv);
    visit(Field{.name = "mid_block_add_attention", .help = "attention in the middle", .saved = !video},
          mid_block_add_attention);
    visit(Field{.name = "force_upcast", .help = "fp16 overflows", .saved = !video}, force_upcast);
    visit(Field{.name = "sample_size", .help = "side of a tile", .least = 8, .most = 65536, .saved = !video},
          sample_size);
    visit(Field{.name = "sample_height", .help = "tiles", .least = 16, .most = 65536, .saved = video},
          sample_height);
    visit(Field{.name = "sample_width", .help = "tiles", .least = 16, .most = 65536, .saved = video},
          sample_width);
    visit(Field{.name = "temporal_compression_ratio",
                .help = "frames to a latent",
                .least = 1,
                .most = 64,
                .saved = video},
          temporal_compression_ratio);
    visit(Field{.name = "norm_eps", .help = "of the norms", .least = 0, .most = 1, .saved = video}, norm_eps);
  }
};

struct ConvertedVae {
  VaeConfig config;
  models::Weights tensors;         // as stored, under diffusers' names
  std::vector<std::string> notes;  // what a person should know: each a line
};

// Every tensor of the autoencoder must be accounted for; other parts of a whole checkpoint (the prefixes
// `first_stage_model.` and `vae.` tell) and a loss's are passed over. `set` is of VaeConfig's fields.
ConvertedVae convert_single_vae(const std::filesystem::path& source, const std::vector<std::string>& set);

// config.json and diffusion_pytorch_model.safetensors, in the place of those that are there, at once.
void write_vae_folder(const std::filesystem::path& folder, const ConvertedVae& vae);

}  // namespace pom::generate
