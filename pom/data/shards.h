// Data sets of latents at scale: our shards, the authors', EDM2's folders (latent_source.h).
#pragma once

#include <cstdint>
#include <optional>

#include "pom/data/folder.h"
#include "pom/data/shard_format.h"

namespace pom::data {

struct ShardSets {
  FileSets sets;
  bool apart = false;  // validation has files of its own; else both are the same examples
};

// Kinds "shards" (pictures with a class each) and "clip_shards" (with captions and perhaps text states).
// Training sees mean + deviation·normal, drawn anew at each visit, validation the mean; both (latent -
// shift)·scale.
ShardSets open_shards(const DataConfig& config, std::uint64_t seed);

// What dataset.json says, where the shards are ours.
std::optional<ShardSetInfo> own_shard_set(const DataConfig& config);

}  // namespace pom::data
