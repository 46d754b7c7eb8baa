#include "pom/train/text_clip_model.h"

#include <ATen/ops/zeros.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/io/folder_swap.h"
#include "pom/train/device.h"

namespace pom::train {
namespace {

std::unique_ptr<codecs::TextEncoder> encoder_of(const Recipe& recipe, const at::Device& device) {
  if (recipe.encoders.text.empty()) return nullptr;
  const io::OpenFolder folder(recipe.encoders.text, "train: encoders.text");
  const bool lower = device.is_cuda() && recipe.run.precision == "bf16";
  std::unique_ptr<codecs::TextEncoder> encoder =
      codecs::open_text_encoder(recipe.text, folder, lower ? at::kBFloat16 : at::kFloat);
  encoder->to(device);
  return encoder;
}

}  // namespace

TextClipModel::TextClipModel(const Recipe& recipe, const at::Device& device, const at::Device& home)
    : device_(device),
      dtype_(master_dtype(recipe.run.precision)),
      encoder_(encoder_of(recipe, device)),
      network_(recipe.network, static_cast<std::uint64_t>(recipe.run.seed)),
      drop_(recipe.batch.label_drop),
      latest_(recipe.batch.latest_block) {
  network_->to(home, dtype_);
}

codecs::EncodedText TextClipModel::states_of(const Annotations& annotations) const {
  if (annotations.text.defined())
    return {sent_to(device_, annotations.text).to(dtype_), sent_to(device_, annotations.text_mask), {}};
  check(encoder_ != nullptr,
        "train: encoders.text: expected the folder of the text encoder, as the data has captions and no "
        "states, got "
        "nothing");
  codecs::EncodedText text = encoder_->encode(annotations.captions);
  const std::int64_t parts = annotations.parts();
  return {by_clip(text.tokens.to(device_, dtype_), parts), by_clip(text.mask.to(device_), parts), {}};
}

Condition TextClipModel::tell_all(const Annotations& annotations) const {
  const codecs::EncodedText text = states_of(annotations);
  return {text.tokens, text.mask,
          at::zeros({text.mask.size(0)}, at::TensorOptions(at::kLong).device(device_))};
}

Condition TextClipModel::tell(const Annotations& annotations, const DrawKey& key, std::int64_t first) const {
  const NoiseKey drop_key{key.seed, noise_for::label_drop, key.draw};
  const NoiseKey begin_key{key.seed, noise_for::train_time, key.draw};  // of which times are not the bits
  const codecs::EncodedText text = states_of(annotations);
  const std::int64_t B = text.mask.size(0);
  at::Tensor begin = at::zeros({B}, at::kLong), told = at::zeros({B, 1}, at::kBool);
  for (std::int64_t i = 0; i < B; ++i) {
    told.data_ptr<bool>()[i] = uniform_at(drop_key, first + i) >= drop_;
    begin.data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(bits_at(begin_key, first + i)) % (latest_ + 1);
  }
  const at::Tensor heard = sent_to(device_, text.mask.dim() == 3 ? told.unsqueeze(2) : told);
  return {text.tokens, text.mask.logical_and(heard), sent_to(device_, begin)};
}

at::Tensor TextClipModel::forward(const at::Tensor& x, const at::Tensor& times, const Condition& told) {
  at::Tensor text = told[0], mask = told[1];
  if (text.dim() == 4 && split_.split()) {
    text = of_own_blocks(text, network_->config(), split_);
    mask = of_own_blocks(mask, network_->config(), split_);
  }
  return network_->forward(x, times, text, mask, told[2]);
}

}  // namespace pom::train
