#include "pom/train/clip_model.h"

#include <ATen/ops/zeros.h>

#include "pom/base/noise.h"
#include "pom/train/device.h"
#include "pom/train/vocabulary.h"

namespace pom::train {
namespace {

codecs::WordPieces pieces_of(const Recipe& recipe, const std::string& words) {
  return words.empty() ? vocabulary_of(recipe) : codecs::WordPieces::from_lines(words);
}

}  // namespace

ClipModel::ClipModel(const Recipe& recipe, const at::Device& device, const at::Device& home,
                     const std::string& words)
    : device_(device),
      words_(recipe.text, pieces_of(recipe, words), static_cast<std::uint64_t>(recipe.run.seed)),
      network_(recipe.network, static_cast<std::uint64_t>(recipe.run.seed)),
      drop_(recipe.batch.label_drop),
      latest_(recipe.batch.latest_block) {
  const at::ScalarType dtype = master_dtype(recipe.run.precision);
  words_.network()->to(home, dtype);
  network_->to(home, dtype);
}

std::vector<NamedParameter> ClipModel::parameters() {
  std::vector<NamedParameter> all = named_parameters(*network_);
  for (const NamedParameter& p : named_parameters(*words_.network()))
    all.push_back({text_name(p.name), p.tensor});
  return all;
}

std::vector<std::string> ClipModel::forward_order() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : words_.weights()) names.push_back(text_name(name));
  for (const std::string& name : forward_names(network_->config())) names.push_back(name);
  return names;
}

// Always as many pieces as the encoder takes: what a caption gives does not depend on its neighbours.
Condition ClipModel::tell_all(const Annotations& annotations) const {
  const codecs::Words::Pieces read = words_.pieces(annotations.captions, words_.limit());
  return {sent_to(device_, read.pieces), sent_to(device_, read.mask),
          at::zeros({read.pieces.size(0)}, at::TensorOptions(at::kLong).device(device_))};
}

Condition ClipModel::tell(const Annotations& annotations, const DrawKey& key, std::int64_t first) const {
  const NoiseKey drop_key{key.seed, noise_for::label_drop, key.draw};
  const NoiseKey begin_key{key.seed, noise_for::train_time, key.draw};  // of which times are not the bits
  codecs::Words::Pieces read = words_.pieces(annotations.captions, words_.limit());
  const std::int64_t B = read.pieces.size(0);
  at::Tensor begin = at::zeros({B}, at::kLong);
  std::int64_t* block = begin.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < B; ++i) {
    if (uniform_at(drop_key, first + i) < drop_) read.mask[i].fill_(false);
    block[i] = static_cast<std::int64_t>(bits_at(begin_key, first + i)) % (latest_ + 1);
  }
  return {sent_to(device_, read.pieces), sent_to(device_, read.mask), sent_to(device_, begin)};
}

at::Tensor ClipModel::forward(const at::Tensor& x, const at::Tensor& times, const Condition& told) {
  const at::Tensor text = words_.network()->forward(told[0], told[1]);
  if (observer_) observer_(codecs::text_folder, text);
  return network_->forward(x, times, text, told[1], told[2]);
}

void ClipModel::set_observer(Observer observer) {
  observer_ = observer;
  network_->set_observer(std::move(observer));
}

}  // namespace pom::train
