// A small network of CogVideoX's kind with values of a known generator in every tensor, and clips and latents
// for it; python/tests/test_cogvideox.py draws the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "pom/codecs/cogvideox.h"

namespace pom::codecs {

inline at::Generator generator(std::uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

inline CogVideoXConfig small_config() {
  CogVideoXConfig config;
  config.block_out_channels = {8, 16, 16, 24};
  config.layers_per_block = 1;
  config.norm_num_groups = 4;
  config.latent_channels = 4;
  config.sample_height = 32, config.sample_width = 48;
  return config;
}

// In fp32, drawn in the order of their names.
inline std::map<std::string, at::Tensor> random_weights(const CogVideoXConfig& config) {
  std::map<std::string, at::Tensor> weights;
  for (const TensorSpec& spec : cogvideox_tensors(config)) weights[spec.name] = at::empty(spec.shape);
  at::Generator source = generator(0);
  for (auto& [name, values] : weights) {
    const at::Tensor drawn = at::randn(values.sizes(), source, at::TensorOptions());
    if (drawn.dim() > 1)
      values = drawn / std::sqrt(static_cast<double>(drawn[0].numel()));
    else
      values = drawn * 0.1 + (name.find("norm") != std::string::npos && name.ends_with("weight") ? 1 : 0);
  }
  return weights;
}

inline CogVideoX network_of_weights(const CogVideoXConfig& config, std::map<std::string, at::Tensor> weights,
                                    at::ScalarType dtype) {
  return CogVideoX(
      config, [weights = std::move(weights), dtype](const std::string& n) { return weights.at(n).to(dtype); },
      at::TensorOptions().dtype(dtype));
}

inline CogVideoX small_network(at::ScalarType dtype = at::kDouble) {
  return network_of_weights(small_config(), random_weights(small_config()), dtype);
}

inline at::Tensor some_clips(at::IntArrayRef shape) {
  return at::rand(shape, generator(1), at::TensorOptions()) * 2 - 1;
}
inline at::Tensor some_latents(at::IntArrayRef shape) {
  return at::randn(shape, generator(2), at::TensorOptions());
}

}  // namespace pom::codecs
