// The network of FD-DINOv2: a vision transformer of DINOv2 without registers, ViT-L/14 in published scores.
// Its feature is the class token behind the last norm. N pictures, T tokens, D width.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/inception_input.h"

namespace pom::eval {

inline constexpr std::int64_t dinov2_side = 224;

struct Dinov2Config {
  std::int64_t depth = 24, width = 1024;  // heads are 64 wide in all of them
  std::int64_t grid = 37;                 // patches along a side of the pictures that it was trained with

  std::int64_t heads() const { return width / 64; }
};

class Dinov2 {
 public:
  // A safetensors file with the names of the published one ("blocks.0.attn.qkv.weight"); the shapes say how
  // deep and wide it is. What is missing, of another shape or too much is an error; mask_token is not used.
  // Computes in fp32 or fp64.
  static Dinov2 read(const std::filesystem::path& file, at::ScalarType dtype, const at::Device& device);

  // Of x (N, 3, 224, 224), scaled: (N, D). On a CPU the bits do not depend on the number of threads.
  at::Tensor forward(const at::Tensor& x) const;

  std::string name() const;  // "dinov2-vitl14", or its sizes where it has no name
  const Dinov2Config& config() const { return config_; }
  const std::string& sha256() const { return sha256_; }
  const at::Device& device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  struct Linear {
    at::Tensor weight, bias;
    at::Tensor operator()(const at::Tensor& x) const;
  };
  struct Norm {
    at::Tensor weight, bias;
    at::Tensor operator()(const at::Tensor& x) const;
  };
  struct Block {
    Norm norm1, norm2;
    Linear qkv, proj, fc1, fc2;
    at::Tensor scale1, scale2;  // (D), LayerScale
  };

  Dinov2(const Dinov2Config& config, at::ScalarType dtype, const at::Device& device)
      : config_(config), dtype_(dtype), device_(device) {}
  at::Tensor attention(const Block& block, const at::Tensor& x) const;
  at::Tensor tokens(const at::Tensor& x) const;
  at::Tensor run(const at::Tensor& x) const;

  Dinov2Config config_;
  at::ScalarType dtype_;
  at::Device device_;
  std::string sha256_;
  Linear patches_;                // (D, 3, 14, 14)
  at::Tensor class_, positions_;  // (1, 1, D), and of the patches (1, T - 1, D)
  std::vector<Block> blocks_;
  Norm norm_;
};

// 37 x 37 positions to those of `side` patches, as the published network takes them: bicubic, and the step
// from one to the next is 37 / (side + 0.1), not 37 / side. (1, 37², D) -> (1, side², D).
at::Tensor dinov2_positions(const at::Tensor& positions, std::int64_t side);

// (N, 3, H, W) uint8 -> (N, 3, 224, 224) with the mean and deviation of ImageNet's colours taken off.
at::Tensor dinov2_input(const at::Tensor& pictures, InputRule rule, at::ScalarType dtype);

}  // namespace pom::eval
