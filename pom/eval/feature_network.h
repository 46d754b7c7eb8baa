// A network whose features pictures are scored by, together with the way in which pictures come to its size.
// N pictures, F features.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "pom/eval/inception.h"
#include "pom/eval/inception_input.h"

namespace pom::eval {

// Undefined what the network does not have, or was not asked for.
struct PictureFeatures {
  at::Tensor main;             // (N, F): distances, kernels and neighbours are of these
  at::Tensor spatial, logits;  // Inception's, of sFID and of the Inception score
};

class FeatureNetwork {
 public:
  virtual ~FeatureNetwork() = default;

  virtual std::string name() const = 0;           // "inception-v3-2015", "dinov2-vitl14"
  virtual std::string resize() const = 0;         // the name of its InputRule
  virtual const std::string& sha256() const = 0;  // of the file of its weights
  virtual const at::Device& device() const = 0;

  // (n, 3, H, W) uint8, on the host or on the device, to what forward() takes. Each picture by itself.
  virtual at::Tensor input(const at::Tensor& pictures) const = 0;
  virtual PictureFeatures forward(const at::Tensor& input) const = 0;
};

// Of a safetensors file, in fp32.
std::unique_ptr<FeatureNetwork> open_inception(const std::filesystem::path& file, InputRule rule,
                                               const InceptionWanted& wanted, const at::Device& device);
std::unique_ptr<FeatureNetwork> open_dinov2(const std::filesystem::path& file, InputRule rule,
                                            const at::Device& device);

}  // namespace pom::eval
