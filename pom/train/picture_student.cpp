#include "pom/train/picture_student.h"

#include "pom/base/noise.h"
#include "pom/train/device.h"

namespace pom::train {

PictureStudent::PictureStudent(const Recipe& recipe, const at::Device& device)
    : device_(device),
      network_(recipe.network, static_cast<std::uint64_t>(recipe.run.seed)),
      drop_(recipe.batch.label_drop) {
  network_->to(device, master_dtype(recipe.run.precision));
  network_->set_checkpointing(recipe.batch.checkpointing);
}

std::vector<NamedParameter> PictureStudent::parameters() {
  return named_parameters(*network_);
}

std::vector<std::string> PictureStudent::forward_order() const {
  return forward_names(network_->config());
}

Told PictureStudent::tell(const Lesson& lesson, const DrawKey& key, std::int64_t first) const {
  const NoiseKey drop_key{key.seed, noise_for::label_drop, key.draw};
  at::Tensor kept = lesson.labels.to(at::kCPU, at::kLong).clone();
  std::int64_t* y = kept.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < kept.numel(); ++i)
    if (uniform_at(drop_key, first + i) < drop_) y[i] = network_->config().classes;
  return {sent_to(device_, kept)};
}

Told PictureStudent::tell_all(const Lesson& lesson) const {
  return {sent_to(device_, lesson.labels)};
}

at::Tensor PictureStudent::forward(const at::Tensor& x, const at::Tensor& times, const Told& told) {
  return network_->forward(x, times, told[0]);
}

}  // namespace pom::train
