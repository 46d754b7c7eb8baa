#include "pom/codecs/cogvideox_tiles.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

// One axis: where tiles begin, how long they are, and of what comes out the part that is blended with the
// tile before and the part that is kept. Products are cut off, as diffusers does.
struct VideoTileAxis {
  std::int64_t dim, size, step, blend, keep;

  VideoTileAxis(std::int64_t dim, std::int64_t in, std::int64_t out, double overlap)
      : dim(dim),
        size(in),
        step(static_cast<std::int64_t>(static_cast<double>(in) * (1 - overlap))),
        blend(static_cast<std::int64_t>(static_cast<double>(out) * overlap)),
        keep(out - blend) {
    check(overlap >= 0 && overlap < 1 && in >= 1 && out >= 1 && step >= 1,
          "tiles: expected a size and an overlap that leave a step, got ", in, " and ", overlap);
  }

  at::Tensor cut(const at::Tensor& x, std::int64_t from) const { return x.slice(dim, from, from + size); }
  at::Tensor kept(const at::Tensor& x) const { return x.slice(dim, 0, keep); }

  // The beginning of `tile` goes over from the end of the one before it.
  void mix(const at::Tensor& before, const at::Tensor& tile) const {
    const std::int64_t over = std::min({blend, before.size(dim), tile.size(dim)});
    for (std::int64_t i = 0; i < over; ++i) {
      const double part = static_cast<double>(i) / static_cast<double>(over);
      at::Tensor to = tile.select(dim, i);
      to.copy_(before.select(dim, before.size(dim) - over + i).mul(1 - part).add_(to.mul(part)));
    }
  }
};

template <class Run>
at::Tensor in_video_tiles(const at::Tensor& x, const VideoTileAxis& rows, const VideoTileAxis& columns,
                          const Run& run) {
  std::vector<at::Tensor> above, done;
  for (std::int64_t y = 0; y < x.size(rows.dim); y += rows.step) {
    std::vector<at::Tensor> row, kept;
    for (std::int64_t from = 0; from < x.size(columns.dim); from += columns.step) {
      const at::Tensor tile = run(columns.cut(rows.cut(x, y), from));
      if (!above.empty()) rows.mix(above[row.size()], tile);
      if (!row.empty()) columns.mix(row.back(), tile);
      row.push_back(tile);
      kept.push_back(columns.kept(rows.kept(tile)));
    }
    done.push_back(at::cat(kept, columns.dim));
    above = std::move(row);
  }
  return at::cat(done, rows.dim);
}

}  // namespace

VideoTile VideoTile::of(const CogVideoXConfig& config) {
  return {.height = config.sample_height / 2, .width = config.sample_width / 2};
}

at::Tensor encode_tiled(const CogVideoX& network, const at::Tensor& clips, const VideoTile& tile) {
  const std::int64_t factor = network.config().factor();
  check(clips.dim() == 5, "encode: clips: expected shape (B, C, T, H, W), got ", clips.sizes());
  if (clips.size(3) <= tile.height && clips.size(4) <= tile.width) return network.encode_moments(clips);
  return in_video_tiles(clips, {3, tile.height, tile.height / factor, tile.overlap_height},
                        {4, tile.width, tile.width / factor, tile.overlap_width},
                        [&](const at::Tensor& part) { return network.encode_moments(part); });
}

at::Tensor decode_tiled(const CogVideoX& network, const at::Tensor& latents, const VideoTile& tile) {
  const std::int64_t factor = network.config().factor();
  check(latents.dim() == 5, "decode: latents: expected shape (B, C, T, H, W), got ", latents.sizes());
  const std::int64_t height = tile.height / factor, width = tile.width / factor;
  if (latents.size(3) <= height && latents.size(4) <= width) return network.decode(latents);
  return in_video_tiles(latents, {3, height, tile.height, tile.overlap_height},
                        {4, width, tile.width, tile.overlap_width},
                        [&](const at::Tensor& part) { return network.decode(part); });
}

}  // namespace pom::codecs
