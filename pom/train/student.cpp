#include "pom/train/student.h"

#include "pom/codecs/text.h"
#include "pom/train/clip_student.h"
#include "pom/train/picture_student.h"

namespace pom::train {
namespace {

const std::string prefix = std::string(codecs::text_folder) + ".";

}  // namespace

std::unique_ptr<Student> make_student(const Recipe& recipe, const at::Device& device,
                                      const std::string& words) {
  if (recipe.network.video()) return std::make_unique<ClipStudent>(recipe, device, words);
  return std::make_unique<PictureStudent>(recipe, device);
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

at::Tensor sent_to(const at::Device& device, const at::Tensor& host) {
  if (!device.is_cuda()) return host.to(device);
  return host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true);
}

}  // namespace pom::train
