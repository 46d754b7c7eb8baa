// Private to the room: large pictures in overlapping tiles that are blended, as diffusers does it.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace pom::codecs {

// One axis: tiles of `tile` pixels of the input start every `step`; of a tile's result neighbours blend over
// `blend` pixels, and its first `keep` are kept.
struct TileAxis {
  std::int64_t tile = 1, step = 1, blend = 0, keep = 1;
};

struct TileRule {
  TileAxis rows, columns;
  // Of pictures: squares of `tile` that become `made`, a quarter of which overlaps.
  static TileRule quarters(std::int64_t tile, std::int64_t made);
};

// The last two axes are rows and columns. A picture no larger than a tile is given to `apply` whole.
at::Tensor blended_tiles(const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& apply,
                         const TileRule& rule);

}  // namespace pom::codecs
