// Private to the room: clips through CogVideoX's autoencoder in tiles, as diffusers' enable_tiling() does it.
// Tiles overlap and are blended; norms see a tile only, so that the result is another one than the whole's.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/codecs/cogvideox.h"

namespace pom::codecs {

// A tile in pixels, and the parts of it that the next one covers again.
struct VideoTile {
  std::int64_t height = 240, width = 360;
  double overlap_height = 1.0 / 6, overlap_width = 1.0 / 5;
  static VideoTile of(const CogVideoXConfig& config);
};

// What is no larger than a tile goes through whole.
at::Tensor encode_tiled(const CogVideoX& network, const at::Tensor& clips, const VideoTile& tile);
at::Tensor decode_tiled(const CogVideoX& network, const at::Tensor& latents, const VideoTile& tile);

}  // namespace pom::codecs
