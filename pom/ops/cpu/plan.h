// How the tokens of a batch are cut into tiles for the CPU kernels, and which tokens share an H.
#pragma once

#include <cstdint>
#include <vector>

#include "pom/ops/cpu/kernels.h"

namespace pom::ops::cpu {

struct Plan {
  std::vector<Tile> tiles;
  std::vector<Piece> pieces;
  std::vector<std::int64_t> segment_begin;  // per sequence (and one more): its first segment
  std::vector<std::int64_t> sub_begin;      // per segment (and one more): its first partial sum
  std::int64_t tokens = 0;

  std::int64_t segments() const { return static_cast<std::int64_t>(sub_begin.size()) - 1; }
  std::int64_t subs() const { return sub_begin.back(); }
};

// Segments are whole sequences, or blocks of `block` tokens of them. Pieces end at segments' ends or at a
// multiple of kSub tokens within one, so the partial sums do not depend on the tiles.
Plan plan_segments(const std::vector<std::int64_t>& lengths, std::int64_t block, int tile);

// For small causal blocks: pieces end at sequences' ends or at a multiple of `block` tokens.
Plan plan_scan(const std::vector<std::int64_t>& lengths, std::int64_t block, int tile);

// Tokens of a tile for this many tokens in all: enough tiles to share, large enough to reuse the weights.
int tile_size(std::int64_t tokens);

// Features of one degree taken together.
std::int64_t group_size(std::int64_t order, std::int64_t features);

}  // namespace pom::ops::cpu
