// The network of FID, sFID, IS and KID: Inception-v3 as published on 2015-12-05. It differs from other
// networks of that name: average pools count only pixels that are there, the last block pools by maximum, and
// it has 1008 outputs. N pictures.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::eval {

inline constexpr std::int64_t inception_side = 299, inception_outputs = 1008, inception_features = 2048;

// One of its 94 convolutions, each with a batch norm and a ReLU behind it.
struct InceptionConv {
  std::string name;  // "Mixed_5b.branch5x5_2"
  std::int64_t out = 0, in = 0;
  std::array<std::int64_t, 2> kernel = {1, 1};
  std::int64_t stride = 1;
  std::array<std::int64_t, 2> padding = {0, 0};
};
const std::vector<InceptionConv>& inception_convs();

// What a score may look at. Undefined what was not asked for.
struct InceptionFeatures {
  at::Tensor pool64, pool192, pool768;  // means over the pixels of early layers: (N, 64), (N, 192), (N, 768)
  at::Tensor spatial;                   // (N, 2023), 7 channels of a layer of 17 x 17, the channels last
  at::Tensor pool3;                     // (N, 2048)
  at::Tensor logits;                    // (N, 1008), without the bias, as the Inception score takes them
};

struct InceptionWanted {
  bool early = false;  // pool64, pool192
  bool pool768 = false;
  bool spatial = false;
  bool pool3 = true;
  bool logits = false;
};

class Inception {
 public:
  using Weights = std::map<std::string, at::Tensor>;

  // Names and shapes as the published PyTorch file has them ("Conv2d_1a_3x3.conv.weight"); what is missing,
  // of another shape or too much is an error. Computes in `dtype`, fp32 or fp64.
  Inception(const Weights& weights, at::ScalarType dtype, const at::Device& device);
  // From a safetensors file.
  static Inception read(const std::filesystem::path& file, at::ScalarType dtype, const at::Device& device);

  // Of x (N, 3, 299, 299), scaled.
  InceptionFeatures forward(const at::Tensor& x, const InceptionWanted& wanted) const;

  const std::string& sha256() const { return sha256_; }  // of the file; empty where there is none
  const at::Device& device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  struct Layer {
    at::Tensor weight, bias;  // with the batch norm within them
    const InceptionConv* conv = nullptr;
  };
  at::Tensor conv(const at::Tensor& x, const std::string& name) const;
  at::Tensor chain(at::Tensor x, const std::string& block, std::initializer_list<const char*> names) const;
  at::Tensor block_a(const at::Tensor& x, const std::string& block) const;
  at::Tensor block_b(const at::Tensor& x, const std::string& block) const;
  at::Tensor block_c(const at::Tensor& x, const std::string& block) const;
  at::Tensor block_d(const at::Tensor& x, const std::string& block) const;
  at::Tensor block_e(const at::Tensor& x, const std::string& block, bool last) const;
  at::Tensor beginning(const at::Tensor& x, const InceptionWanted& wanted, InceptionFeatures& out) const;

  std::map<std::string, Layer> layers_;
  at::Tensor fc_;  // (1008, 2048)
  at::ScalarType dtype_;
  at::Device device_;
  at::MemoryFormat layout_;
  std::string sha256_;
};

// For distances by features that nothing was ever taught: evenly drawn numbers of the size that keeps sizes.
Inception::Weights drawn_inception_weights();

}  // namespace pom::eval
