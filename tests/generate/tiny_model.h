// A model folder that is made in a moment: a small network of random weights, none of them zero, so that its
// pictures depend on everything.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <ATen/ops/empty_like.h>

#include "pom/base/noise.h"
#include "pom/generate/folder.h"
#include "pom/models/weights.h"

namespace pom::generate {

class TinyModel {
 public:
  explicit TinyModel(const ModelConfig& config = tiny_config()) : config_(config) {
    std::string name = (std::filesystem::temp_directory_path() / "pom-model-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    root_ = name;
    folder_ = root_ / "tiny";
    std::filesystem::create_directory(folder_);
    write_config(folder_, config);
    models::write_weights(folder_ / weights_file, random_weights(config.network), at::kFloat);
  }
  ~TinyModel() { std::filesystem::remove_all(root_); }
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }

  static ModelConfig tiny_config() {
    ModelConfig config;
    config.network.dim = 32;
    config.network.depth = 2;
    config.network.channels = 3;
    config.network.classes = 4;
    config.network.heads = 2;
    config.sample = {.size = {16, 16}, .sampler = "heun", .steps = 4, .cfg_scale = 2};
    config.classes = {"circle", "square", "star", "otter, sea"};
    return config;
  }

  // Initial weights have zeros, of which no picture would come.
  static models::Weights random_weights(const models::NetworkConfig& network) {
    models::Weights weights = models::initial_weights(network, 1);
    std::uint32_t place = 0;
    for (auto& [name, tensor] : weights) {
      at::Tensor noise = at::empty_like(tensor);
      fill_normal(noise.data_ptr<float>(), noise.numel(), {2, noise_for::test, place++});
      tensor.add_(noise, 0.1);
    }
    return weights;
  }

 private:
  std::filesystem::path root_, folder_;
  ModelConfig config_;
};

}  // namespace pom::generate
