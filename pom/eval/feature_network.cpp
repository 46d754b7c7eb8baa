#include "pom/eval/feature_network.h"

#include <utility>

#include "pom/eval/dinov2.h"

namespace pom::eval {
namespace {

class InceptionNetwork final : public FeatureNetwork {
 public:
  InceptionNetwork(Inception network, InputRule rule, const InceptionWanted& wanted)
      : network_(std::move(network)), rule_(rule), wanted_(wanted) {}

  std::string name() const override { return "inception-v3-2015"; }
  std::string resize() const override { return name_of(rule_); }
  const std::string& sha256() const override { return network_.sha256(); }
  const at::Device& device() const override { return network_.device(); }
  at::Tensor input(const at::Tensor& pictures) const override {
    return inception_input(pictures, rule_, network_.dtype());
  }
  PictureFeatures forward(const at::Tensor& input) const override {
    const InceptionFeatures found = network_.forward(input, wanted_);
    return {found.pool3, found.spatial, found.logits};
  }

 private:
  Inception network_;
  InputRule rule_;
  InceptionWanted wanted_;
};

class Dinov2Network final : public FeatureNetwork {
 public:
  Dinov2Network(Dinov2 network, InputRule rule) : network_(std::move(network)), rule_(rule) {}

  std::string name() const override { return network_.name(); }
  std::string resize() const override { return name_of(rule_); }
  const std::string& sha256() const override { return network_.sha256(); }
  const at::Device& device() const override { return network_.device(); }
  at::Tensor input(const at::Tensor& pictures) const override {
    return dinov2_input(pictures, rule_, network_.dtype());
  }
  PictureFeatures forward(const at::Tensor& input) const override {
    return {network_.forward(input), {}, {}};
  }

 private:
  Dinov2 network_;
  InputRule rule_;
};

}  // namespace

std::unique_ptr<FeatureNetwork> open_inception(const std::filesystem::path& file, InputRule rule,
                                               const InceptionWanted& wanted, const at::Device& device) {
  return std::make_unique<InceptionNetwork>(Inception::read(file, at::kFloat, device), rule, wanted);
}

std::unique_ptr<FeatureNetwork> open_dinov2(const std::filesystem::path& file, InputRule rule,
                                            const at::Device& device) {
  return std::make_unique<Dinov2Network>(Dinov2::read(file, at::kFloat, device), rule);
}

}  // namespace pom::eval
