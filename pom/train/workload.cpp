#include "pom/train/workload.h"

#include "pom/base/error.h"
#include "pom/data/shapes.h"
#include "pom/models/counts.h"
#include "pom/train/division.h"
#include "pom/train/refusal.h"

namespace pom::train {
namespace {

constexpr std::int64_t autoencoder_factor = 8, autoencoder_frames = 4, usual_classes = 1000;

bool has_autoencoder(const Recipe& recipe) {
  return recipe.data.encoded() || recipe.codec.kind != "pixels";
}

void assume_classes(const Recipe& recipe, Workload& work) {
  std::int64_t& classes = work.network.classes;
  if (classes != 0) return;
  if (work.network.video()) {
    classes = 1;
  } else if (recipe.data.kind == "shapes") {
    classes = std::ssize(data::shape_names());
  } else {
    classes = usual_classes;
    work.assumed.push_back(detail::concat(classes, " classes, as the recipe names none"));
  }
}

void assume_channels(const Recipe& recipe, Workload& work) {
  std::int64_t& channels = work.network.channels;
  if (channels != 0) return;
  if (!has_autoencoder(recipe)) {
    channels = 3;
  } else {
    channels = recipe.codec.kind == "cogvideox" ? 16 : 4;
    work.assumed.push_back(detail::concat(channels, " channels of latents, as the recipe names none"));
  }
}

}  // namespace

Shard shard_of(std::string_view name) {
  for (const Shard shard : all_shards)
    if (name_of(shard) == name) return shard;
  fail("parallel.shard: expected none, optimizer, gradients or parameters, got \"", name, "\"");
}

std::string_view name_of(Shard shard) {
  switch (shard) {
    case Shard::none:
      return "none";
    case Shard::optimizer:
      return "optimizer";
    case Shard::gradients:
      return "gradients";
    case Shard::parameters:
      return "parameters";
  }
  return {};
}

std::int64_t Workload::parameters() const {
  return models::count_parameters(network);
}

std::int64_t Workload::tokens() const {
  return network.tokens(height, width) * blocks;
}

Workload workload_of(const Recipe& recipe, const std::vector<std::int64_t>& shape) {
  Workload work{.network = recipe.network,
                .precision = recipe.run.precision,
                .batch = recipe.batch,
                .parallel = recipe.parallel,
                .average_every = recipe.ema.every,
                .muon = recipe.optimizer.kind == "muon"};
  work.height = shape.at(shape.size() - 2), work.width = shape.back();
  if (!recipe.network.video()) return work;
  work.blocks = shape.at(1) / recipe.network.patch_time;
  work.words =
      recipe.text.limit * (recipe.data.kind == "sprites" ? recipe.data.sprites.parts(recipe.data.frames) : 1);
  return work;
}

Workload workload_of(const Recipe& recipe) {
  const std::int64_t factor = has_autoencoder(recipe) ? autoencoder_factor : 1;
  const std::int64_t frames = recipe.data.frames / (factor > 1 ? autoencoder_frames : 1);
  Workload work = workload_of(recipe, {recipe.network.channels, frames, recipe.data.size.at(1) / factor,
                                       recipe.data.size.at(0) / factor});
  assume_classes(recipe, work);
  assume_channels(recipe, work);
  if (factor > 1)
    work.assumed.push_back(detail::concat("an autoencoder that divides the sides of images by ", factor,
                                          recipe.network.video() ? " and frames by 4" : ""));
  const std::int64_t patch = recipe.network.patch, patch_time = recipe.network.patch_time;
  refuse_unless(work.width > 0 && work.height > 0 && work.width % patch == 0 && work.height % patch == 0,
                "data.size: expected sides of latents that network.patch (", patch, ") divides, got ",
                work.width, "x", work.height);
  refuse_unless(!recipe.network.video() || (frames > 0 && frames % patch_time == 0),
                "data.frames: expected whole blocks of network.patch_time (", patch_time,
                ") latent frames, got ", frames, " of them");
  return work;
}

RankWork rank_work(const Workload& work, std::int64_t ranks, bool cpu) {
  const std::int64_t sharing = work.parallel.sequence;
  refuse_unless(ranks % sharing == 0, "parallel.sequence: expected a divisor of the number of ranks (", ranks,
                "), got ", sharing);
  const std::int64_t rows = work.network.video() ? work.blocks : work.height / work.network.patch;
  refuse_unless(sharing <= rows, "parallel.sequence: expected at most ", rows,
                work.network.video() ? " (blocks of frames)" : " (rows of patches)", ", got ", sharing);
  refuse_unless(sharing == 1 || !work.network.attention(),
                "parallel.sequence: expected 1 with attention, got ", sharing);
  const Division d =
      divide(work.batch, work.parallel, cpu || work.parallel.exact, 0, static_cast<int>(ranks / sharing));
  return {.parts = std::ssize(d.mine), .examples = d.size, .sharing = sharing, .exact = d.exact};
}

}  // namespace pom::train
