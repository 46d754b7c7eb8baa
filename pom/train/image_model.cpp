#include "pom/train/image_model.h"

#include "pom/base/noise.h"
#include "pom/train/device.h"

namespace pom::train {

ImageModel::ImageModel(const Recipe& recipe, const at::Device& device, const at::Device& home)
    : device_(device),
      network_(recipe.network, static_cast<std::uint64_t>(recipe.run.seed)),
      drop_(recipe.batch.label_drop) {
  network_->to(home, master_dtype(recipe.run.precision));
  network_->set_checkpointing(recipe.batch.checkpointing);
}

std::vector<NamedParameter> ImageModel::parameters() {
  return named_parameters(*network_);
}

std::vector<std::string> ImageModel::forward_order() const {
  return forward_names(network_->config());
}

Condition ImageModel::tell(const Annotations& annotations, const DrawKey& key, std::int64_t first) const {
  const NoiseKey drop_key{key.seed, noise_for::label_drop, key.draw};
  at::Tensor kept = annotations.labels.to(at::kCPU, at::kLong).clone();
  std::int64_t* y = kept.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < kept.numel(); ++i)
    if (uniform_at(drop_key, first + i) < drop_) y[i] = network_->config().classes;
  return {sent_to(device_, kept)};
}

Condition ImageModel::tell_all(const Annotations& annotations) const {
  return {sent_to(device_, annotations.labels)};
}

at::Tensor ImageModel::forward(const at::Tensor& x, const at::Tensor& times, const Condition& told) {
  return network_->forward(x, times, told[0]);
}

}  // namespace pom::train
