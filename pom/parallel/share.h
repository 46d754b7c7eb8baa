// A rank's share of things in a row: tokens of a sequence, rows of patches of a picture, blocks of a clip.
// Neighbours in the row are neighbours among the ranks. No torch.
#pragma once

#include <cstdint>
#include <vector>

namespace pom::parallel {

struct Share {
  std::int64_t first = 0, count = 0;
  std::int64_t end() const { return first + count; }
};

// Of `total` things in wholes of `unit` (the last of which may be short), dealt out to `parts`: each gets as
// many wholes as the others, the first ones one more where that does not come out even. With fewer wholes
// than parts the last parts get nothing.
Share share_of(std::int64_t total, std::int64_t parts, std::int64_t part, std::int64_t unit = 1);

// How many each part gets.
std::vector<std::int64_t> share_counts(std::int64_t total, std::int64_t parts, std::int64_t unit = 1);

}  // namespace pom::parallel
