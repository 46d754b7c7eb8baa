// Opens the data set that a recipe asks for, and divides it into training and validation.
#include "pom/data/dataset.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/base/suggest.h"
#include "pom/data/clips.h"
#include "pom/data/folder.h"
#include "pom/data/permutation.h"
#include "pom/data/scenes.h"
#include "pom/data/shapes.h"
#include "pom/data/shards.h"
#include "pom/data/sprites.h"
#include "pom/data/streams.h"

namespace pom::data {
namespace {

// Validation examples of an endless data set: farther than any training goes.
constexpr std::int64_t far_away = std::int64_t{1} << 40;

// Some examples of another data set, under new numbers.
class Part final : public Dataset {
 public:
  Part(std::shared_ptr<const Dataset> whole, std::vector<std::int64_t> indices)
      : whole_(std::move(whole)), indices_(std::move(indices)) {}

  std::int64_t size() const override { return std::ssize(indices_); }
  const std::vector<std::string>& classes() const override { return whole_->classes(); }
  std::vector<std::int64_t> shape() const override { return whole_->shape(); }
  bool latents() const override { return whole_->latents(); }
  std::vector<std::int64_t> text_shape() const override { return whole_->text_shape(); }
  std::int64_t parts() const override { return whole_->parts(); }
  std::vector<std::int64_t> groups() const override {
    std::vector<std::int64_t> groups = whole_->groups();
    std::int64_t end = 0;
    auto next = indices_.begin();  // they are in order
    for (std::int64_t& size : groups) {
      end += size;
      const auto after = std::lower_bound(next, indices_.end(), end);
      size = after - next;
      next = after;
    }
    return groups;
  }
  Example get(std::int64_t index, std::int64_t visit) const override {
    return whole_->get(indices_at(index), visit);
  }
  std::string name_of(std::int64_t index) const override { return whole_->name_of(indices_at(index)); }

 private:
  std::int64_t indices_at(std::int64_t index) const {
    check(index >= 0 && index < size(), "dataset: index: expected below ", size(), ", got ", index);
    return indices_[static_cast<std::size_t>(index)];
  }

  std::shared_ptr<const Dataset> whole_;
  std::vector<std::int64_t> indices_;
};

template <class Make>
Split split_drawn(Make&& make, const DataConfig& config, std::uint64_t seed) {
  check(config.path.empty(), "data: path: expected none where kind is ", config.kind, ", got \"", config.path,
        "\"");
  DataConfig still = config;
  still.flip = false;
  const auto training = make(config, seed, 0, 0);
  if (config.validation > 0) return {training, make(still, seed, config.validation, far_away)};
  return {training, std::make_shared<Part>(training, std::vector<std::int64_t>())};
}

// The first `held` of a permutation of all examples are held back. Both parts keep the order of the files.
Split split_files(const FileSets& sets, std::int64_t wanted, std::uint64_t seed) {
  const std::int64_t size = sets.training->size();
  const std::int64_t held = std::min(wanted, size / 10);
  const Permutation order({seed, noise_for::data_content, streams::held_back}, size);
  std::vector<bool> is_held(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < held; ++i) is_held[static_cast<std::size_t>(order.at(i))] = true;
  std::vector<std::int64_t> training, validation;
  for (std::int64_t i = 0; i < size; ++i)
    (is_held[static_cast<std::size_t>(i)] ? validation : training).push_back(i);
  return {std::make_shared<Part>(sets.training, std::move(training)),
          std::make_shared<Part>(sets.validation, std::move(validation))};
}

// Of a data set that has a validation of its own: so many of it, and all of the training.
Split split_apart(const FileSets& sets, std::int64_t wanted, std::uint64_t seed) {
  const std::int64_t size = sets.validation->size();
  const Permutation order({seed, noise_for::data_content, streams::held_back}, size);
  std::vector<std::int64_t> kept;
  for (std::int64_t i = 0; i < std::min(wanted, size); ++i) kept.push_back(order.at(i));
  std::ranges::sort(kept);
  return {sets.training, std::make_shared<Part>(sets.validation, std::move(kept))};
}

Split split_shards(const ShardSets& shards, std::int64_t wanted, std::uint64_t seed) {
  return shards.apart ? split_apart(shards.sets, wanted, seed) : split_files(shards.sets, wanted, seed);
}

}  // namespace

Split open_dataset(const DataConfig& config, std::uint64_t seed) {
  check(config.validation >= 0, "data: validation: expected at least 0, got ", config.validation);
  if (config.kind == "shapes") return split_drawn(make_shapes, config, seed);
  if (config.kind == "sprites") return split_drawn(make_sprites, config, seed);
  if (config.kind == "scenes") return split_drawn(make_scenes, config, seed);
  if (config.kind == "folder") return split_files(open_picture_folder(config, seed), config.validation, seed);
  if (config.kind == "latents") return split_files(open_latents(config, seed), config.validation, seed);
  if (config.kind == "clips") return split_files(open_clip_folder(config, seed), config.validation, seed);
  if (config.in_shards()) return split_shards(open_shards(config, seed), config.validation, seed);
  const std::vector<std::string> kinds = {"shapes",  "folder", "latents", "shards",
                                          "sprites", "scenes", "clips",   "clip_shards"};
  fail("data: kind: expected shapes, folder, latents, shards, sprites, scenes, clips or clip_shards, got \"",
       config.kind, "\"", suggestion(config.kind, kinds));
}

at::Tensor to_model_range(const at::Tensor& pictures) {
  if (pictures.scalar_type() != at::kByte) return pictures;
  return pictures.to(at::kFloat).div_(127.5).sub_(1);
}

}  // namespace pom::data
