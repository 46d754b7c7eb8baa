#include "pom/codecs/tiles.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

// The first rows (axis -2) or columns (-1) of `tile` go over from the last ones of the tile before it.
void blend_into(at::Tensor& tile, const at::Tensor& before, std::int64_t axis, std::int64_t blend) {
  const std::int64_t extent = std::min({blend, before.size(axis), tile.size(axis)});
  if (extent == 0) return;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(tile.dim()), 1);
  shape[static_cast<std::size_t>(tile.dim() + axis)] = extent;
  const at::Tensor share = at::arange(extent, tile.options()).div_(extent).view(shape);
  at::Tensor first = tile.narrow(axis, 0, extent);
  const at::Tensor last = before.narrow(axis, before.size(axis) - extent, extent);
  first.copy_(last.mul(share.neg().add_(1)).add_(first.mul(share)));
}

}  // namespace

TileRule TileRule::quarters(std::int64_t tile, std::int64_t made) {
  const TileAxis axis{.tile = tile, .step = tile * 3 / 4, .blend = made / 4, .keep = made - made / 4};
  return {axis, axis};
}

at::Tensor blended_tiles(const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& apply,
                         const TileRule& rule) {
  const std::int64_t height = x.size(-2), width = x.size(-1);
  if (height <= rule.rows.tile && width <= rule.columns.tile) return apply(x);
  check(rule.rows.step >= 1 && rule.columns.step >= 1, "tiles: expected tiles of at least 2 pixels, got ",
        rule.rows.tile, " x ", rule.columns.tile);
  std::vector<at::Tensor> above, stripes;
  for (std::int64_t top = 0; top < height; top += rule.rows.step) {
    std::vector<at::Tensor> row, kept;
    for (std::int64_t left = 0; left < width; left += rule.columns.step) {
      const at::Tensor tile = x.narrow(-2, top, std::min(rule.rows.tile, height - top))
                                  .narrow(-1, left, std::min(rule.columns.tile, width - left));
      row.push_back(apply(tile).clone());
      // With neighbours that are blended already: what diffusers' passes over its list of tiles come to.
      if (!above.empty()) blend_into(row.back(), above[row.size() - 1], -2, rule.rows.blend);
      if (row.size() > 1) blend_into(row.back(), row[row.size() - 2], -1, rule.columns.blend);
      const at::Tensor& made = row.back();
      kept.push_back(made.narrow(-2, 0, std::min(rule.rows.keep, made.size(-2)))
                         .narrow(-1, 0, std::min(rule.columns.keep, made.size(-1))));
    }
    stripes.push_back(at::cat(kept, -1));
    above = std::move(row);
  }
  return at::cat(stripes, -2);
}

}  // namespace pom::codecs
