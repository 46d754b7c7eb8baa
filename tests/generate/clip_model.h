// A model folder for clips, made in a moment: a small network of random weights, and words.
#pragma once

#include <cmath>
#include <filesystem>
#include <string>
#include <unistd.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/codecs/words.h"
#include "pom/generate/folder.h"
#include "pom/models/weights.h"

namespace pom::generate {

namespace fs = std::filesystem;

// A model with random weights in a folder of its own.
class ClipModel {
 public:
  explicit ClipModel(const std::string& mask, std::int64_t window = 0)
      : folder_(fs::temp_directory_path() /
                detail::concat("pom_clips_", ::getpid(), "_", mask, "_", window)) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    ModelConfig config;
    models::NetworkConfig& n = config.network;
    n.kind = "vdipom";
    n.dim = 24, n.depth = 2, n.patch = 4, n.patch_time = 2, n.channels = 3, n.text_width = 8,
    n.ffw_expand = 2;
    n.temporal_mask = mask == "authors" ? "block-causal" : mask, n.window = window;
    if (mask == "authors") n.position = "narrow", n.time_code = "relative", n.no_text = "mask";
    config.text = {.kind = "words", .width = 8, .limit = 12, .layers = 1};
    config.sample.size = {16, 8}, config.sample.sampler = "euler", config.sample.steps = 3;
    config.sample.cfg_scale = 2, config.sample.frames = 6, config.sample.fps = 8;
    write_config(folder_, config);
    at::manual_seed(7);
    models::Weights weights;
    for (const models::TensorSpec& spec : models::expected_tensors(n)) {
      const at::Tensor values = at::randn(spec.shape);
      const bool matrix = spec.shape.size() > 1;
      weights[spec.name] =
          values * (matrix ? 0.6 / std::sqrt(static_cast<double>(values.numel() / values.size(0))) : 0.1);
    }
    models::write_weights(folder_ / weights_file, weights, at::kFloat);
    codecs::Words(config.text, codecs::WordPieces::from_lines("a\nblue\nleft\nstar\n"))
        .save(folder_ / codecs::text_folder);
  }
  ~ClipModel() { fs::remove_all(folder_); }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

}  // namespace pom::generate
