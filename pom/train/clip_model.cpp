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
  const std::int64_t parts = annotations.parts();
  return {sent_to(device_, by_clip(read.pieces, parts)), sent_to(device_, by_clip(read.mask, parts)),
          at::zeros({read.pieces.size(0) / parts}, at::TensorOptions(at::kLong).device(device_))};
}

Condition ClipModel::tell(const Annotations& annotations, const DrawKey& key, std::int64_t first) const {
  const NoiseKey drop_key{key.seed, noise_for::label_drop, key.draw};
  const NoiseKey begin_key{key.seed, noise_for::train_time, key.draw};  // of which times are not the bits
  const codecs::Words::Pieces read = words_.pieces(annotations.captions, words_.limit());
  const at::Tensor pieces = by_clip(read.pieces, annotations.parts()),
                   mask = by_clip(read.mask, annotations.parts());
  const std::int64_t B = pieces.size(0);
  at::Tensor begin = at::zeros({B}, at::kLong);
  std::int64_t* block = begin.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < B; ++i) {
    if (uniform_at(drop_key, first + i) < drop_) mask[i].fill_(false);  // all parts, as in a stream
    block[i] = static_cast<std::int64_t>(bits_at(begin_key, first + i)) % (latest_ + 1);
  }
  return {sent_to(device_, pieces), sent_to(device_, mask), sent_to(device_, begin)};
}

at::Tensor ClipModel::forward(const at::Tensor& x, const at::Tensor& times, const Condition& told) {
  const bool several = told[0].dim() == 3;  // captions of a clip
  at::Tensor mask = told[1];
  at::Tensor text = several ? words_.network()->forward(told[0].flatten(0, 1), mask.flatten(0, 1))
                            : words_.network()->forward(told[0], mask);
  if (observer_) observer_(codecs::text_folder, text);
  if (several) text = by_clip(text, told[0].size(1));
  if (several && split_.split()) {
    text = of_own_blocks(text, network_->config(), split_);
    mask = of_own_blocks(mask, network_->config(), split_);
  }
  return network_->forward(x, times, text, mask, told[2]);
}

void ClipModel::set_observer(Observer observer) {
  observer_ = observer;
  network_->set_observer(std::move(observer));
}

}  // namespace pom::train
