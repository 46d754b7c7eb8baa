// One picture or clip on several ranks: each has whole rows of patches of the picture, or whole blocks of
// the clip, and the mixers exchange sums. What a network takes and gives is then this rank's part, along
// dimension 2 of (B, C, H, W) and of (B, C, T, H, W).
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "pom/models/config.h"
#include "pom/ops/split_tokens.h"
#include "pom/parallel/share.h"

namespace pom::models {

struct SequenceSplit {
  parallel::Ranks ranks = {};  // alone: nothing is split
  std::int64_t whole = 0;      // latent rows of the picture, latent frames of the clip
  bool exact = true;           // SplitTokens::exact

  bool split() const { return !ranks.alone(); }
};

// A rank's latent rows, or latent frames. An error where a rank would have none, or the network has
// attention.
parallel::Share sequence_share(const NetworkConfig& config, std::int64_t whole, int ranks, int rank);
parallel::Share sequence_share(const NetworkConfig& config, const SequenceSplit& split);

// The rank's part of what it has whole; and all of it from the parts, on every rank. Without gradients.
at::Tensor sequence_part(const at::Tensor& whole, const NetworkConfig& config, const SequenceSplit& split);
at::Tensor sequence_whole(const at::Tensor& part, const NetworkConfig& config, const SequenceSplit& split);

// How the tokens of x, a rank's part, are dealt out. Not split: empty.
ops::SplitTokens split_tokens(std::string_view where, const at::Tensor& x, const NetworkConfig& config,
                              const SequenceSplit& split);

}  // namespace pom::models
