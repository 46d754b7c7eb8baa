// A model folder: config.json and model.safetensors, and nothing outside it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "pom/codecs/codec_config.h"
#include "pom/codecs/text.h"
#include "pom/diffusion/path.h"
#include "pom/generate/request.h"
#include "pom/io/folder_swap.h"
#include "pom/models/config.h"

namespace pom::generate {

inline constexpr const char* config_file = "config.json";
inline constexpr const char* weights_file = "model.safetensors";

// "diffusion" of config.json: what the network was trained to predict.
struct DiffusionConfig {
  std::string path = "flow";        // of diffusion::Path::names()
  std::string variance = "linear";  // of epsilon: linear, sine, cosine, sigmoid

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "path", .help = "what the network predicts", .choices = diffusion::Path::names()},
          path);
    visit(Field{.name = "variance",
                .help = "variance schedule of path epsilon",
                .choices = diffusion::Path::variance_names()},
          variance);
  }
};

// "sample" of config.json: the settings the model likes best; a request may say otherwise.
struct SampleDefaults {
  std::vector<std::int64_t> size = {256, 256};  // width, height in pixels
  double omega_base = 0;  // side at which `omega auto` is 4; 0: the root of size's product
  std::string sampler = "heun";
  std::int64_t steps = 25;
  double shift = 1;
  double shift_base = 0;  // side at which `shift` holds; it grows with the root of the side. 0: everywhere
  double cfg_scale = 1;
  double cfg_from = 0, cfg_to = 1;
  std::int64_t guidance_channels = 0;  // that guidance acts on, the first ones; 0: all
  double clamp = 0;                    // of the predicted image; 0 is off
  double eta = 0;
  std::int64_t frames = 0;  // of clips; 0 of a model for pictures
  double fps = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "size", .help = "width and height in pixels", .least = 1, .most = 65536}, size);
    visit(Field{.name = "omega_base",
                .help = "side at which omega auto is 4; 0: sqrt(width * height)",
                .least = 0,
                .most = 65536},
          omega_base);
    visit(Field{.name = "sampler", .help = "sampler", .choices = sampler_names(), .closed = false}, sampler);
    visit(Field{.name = "steps", .help = "steps of the sampler", .least = 1, .most = 10000}, steps);
    visit(Field{.name = "shift", .help = "above 1: more steps at high noise", .least = 0.001, .most = 1000},
          shift);
    visit(Field{.name = "shift_base",
                .help = "side at which shift holds, growing as the root of the side; 0: at every size",
                .least = 0,
                .most = 65536,
                .saved = shift_base > 0},
          shift_base);
    visit(Field{.name = "cfg_scale", .help = "guidance; 1 is off", .least = 0, .most = 1000}, cfg_scale);
    visit(Field{.name = "cfg_from", .help = "guidance from this time on", .least = 0, .most = 1}, cfg_from);
    visit(Field{.name = "cfg_to", .help = "guidance up to this time", .least = 0, .most = 1}, cfg_to);
    visit(Field{.name = "guidance_channels",
                .help = "latent channels that guidance acts on, the first ones; 0: all",
                .least = 0,
                .most = 4096,
                .saved = guidance_channels > 0},
          guidance_channels);
    visit(Field{.name = "clamp",
                .help = "largest value of the predicted image; 0 is off",
                .least = 0,
                .most = 1000,
                .formerly = "clip"},
          clamp);
    visit(Field{.name = "eta", .help = "noise that ddim adds in each step", .least = 0, .most = 1}, eta);
    visit(Field{.name = "frames",
                .help = "frames per clip (default: 16)",
                .least = 0,
                .most = 1e9,
                .saved = frames > 0},
          frames);
    visit(Field{.name = "fps",
                .help = "frames per second (default: 8)",
                .least = 0,
                .most = 1000,
                .saved = fps > 0},
          fps);
  }
};

struct ModelConfig {
  std::int64_t format = 1;
  std::string name;  // of the model; the folder's name where empty
  models::NetworkConfig network;
  DiffusionConfig diffusion;
  codecs::CodecConfig codec;
  codecs::TextConfig text;  // of a network for clips
  SampleDefaults sample;
  std::vector<std::string> classes;        // names, one per class; empty: numbers only
  std::vector<std::string> examples = {};  // prompts that the model draws well, for who tries it

  // No field: which fields of `text` a file gave, as the encoder beside it has to have them.
  std::set<std::string> text_given = {};

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "format", .help = "version of this file", .least = 1, .most = 1}, format);
    visit(Field{.name = "name", .help = "model name (default: the folder's)"}, name);
    visit(Field{.name = "network", .help = "the network"}, network);
    visit(Field{.name = "diffusion", .help = "what it was trained to predict"}, diffusion);
    visit(Field{.name = "codec", .help = "codec between images and latents"}, codec);
    visit(Field{.name = "text", .help = "text encoder", .saved = network.video()}, text);
    visit(Field{.name = "sample", .help = "sampling defaults"}, sample);
    visit(Field{.name = "classes", .help = "names of the classes"}, classes);
    visit(Field{.name = "examples", .help = "prompts to try it with", .saved = !examples.empty()}, examples);
  }
};

// A variant's name in "network" gives the defaults of the rest there, and the names of classes their number.
// Everything that is wrong with the file is a pom::Error that begins with its path and the field's.
ModelConfig read_config(const std::filesystem::path& folder);
ModelConfig read_config(const io::OpenFolder& folder);
// Writes config.json into a folder that exists. Whoever trains writes the weights beside it with
// models::write_weights.
void write_config(const std::filesystem::path& folder, const ModelConfig& config);

// What the fields cannot say one by one; `where` begins the message.
void check_config(const ModelConfig& config, std::string_view where);

}  // namespace pom::generate
