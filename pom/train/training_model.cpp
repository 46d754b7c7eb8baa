#include "pom/train/training_model.h"

#include "pom/codecs/text.h"
#include "pom/train/clip_model.h"
#include "pom/train/image_model.h"
#include "pom/train/text_clip_model.h"

namespace pom::train {
namespace {

const std::string prefix = std::string(codecs::text_folder) + ".";

}  // namespace

std::unique_ptr<TrainingModel> make_training_model(const Recipe& recipe, const at::Device& device,
                                                   const at::Device& home, const std::string& words) {
  if (recipe.network.video() && recipe.text.kind == "t5")
    return std::make_unique<TextClipModel>(recipe, device, home);
  if (recipe.network.video()) return std::make_unique<ClipModel>(recipe, device, home, words);
  return std::make_unique<ImageModel>(recipe, device, home);
}

std::string text_name(std::string_view name) {
  return prefix + std::string(name);
}

models::Weights network_part(const models::Weights& weights) {
  models::Weights part;
  for (const auto& [name, tensor] : weights)
    if (!name.starts_with(prefix)) part[name] = tensor;
  return part;
}

models::Weights text_part(const models::Weights& weights) {
  models::Weights part;
  for (const auto& [name, tensor] : weights)
    if (name.starts_with(prefix)) part[name.substr(prefix.size())] = tensor;
  return part;
}

at::Tensor by_clip(const at::Tensor& rows, std::int64_t parts) {
  return parts == 1 ? rows : rows.unflatten(0, {-1, parts});
}

at::Tensor of_own_blocks(const at::Tensor& parts, const models::NetworkConfig& config,
                         const models::SequenceSplit& split) {
  const parallel::Share own = models::sequence_share(config, split);  // frames
  const std::int64_t block = config.patch_time, blocks = split.whole / block;
  return parts.repeat_interleave(blocks / parts.size(1), 1).narrow(1, own.first / block, own.count / block);
}

at::Tensor sent_to(const at::Device& device, const at::Tensor& host) {
  if (!device.is_cuda()) return host.to(device);
  return host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true);
}

}  // namespace pom::train
