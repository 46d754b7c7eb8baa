// What a step of a recipe computes, known without its data: for forecasts and plans.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pom/train/recipe.h"

namespace pom::train {

// What ranks divide among them: nothing; moments and average; gradients too; and the matrices of blocks.
enum class Shard { none, optimizer, gradients, parameters };
Shard shard_of(std::string_view name);
std::string_view name_of(Shard shard);
inline constexpr Shard all_shards[] = {Shard::none, Shard::optimizer, Shard::gradients, Shard::parameters};

struct Workload {
  models::NetworkConfig network;       // with classes and channels
  std::int64_t height = 0, width = 0;  // of a latent
  std::int64_t blocks = 1;             // of frames, of a clip
  std::int64_t words = 0;              // of all texts of a clip, at most
  std::string precision = "fp32";
  BatchConfig batch;
  ParallelConfig parallel;
  std::int64_t average_every = 1;
  bool muon = false;
  std::vector<std::string> assumed = {};  // what the recipe does not say and the data would

  std::int64_t parameters() const;  // n
  std::int64_t tokens() const;      // of an example
};

// Sizes that only the data knows are assumed: 1000 classes, an autoencoder that divides sides by 8 and, of
// clips, frames by 4.
Workload workload_of(const Recipe& recipe);
// Of a complete recipe whose data has examples of this shape: (C, H, W) or (C, F, H, W).
Workload workload_of(const Recipe& recipe, const std::vector<std::int64_t>& shape);

// How one of N ranks goes through a batch: in so many parts, of so many examples, of which it has a share of
// the tokens.
struct RankWork {
  std::int64_t parts = 1, examples = 0;
  std::int64_t sharing = 1;  // ranks that share the tokens of an example
  bool exact = false;
};
// On a CPU as everywhere with parallel.exact. A Refusal where the batch, or the ranks, cannot be divided.
RankWork rank_work(const Workload& work, std::int64_t ranks, bool cpu);

}  // namespace pom::train
