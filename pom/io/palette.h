// Private to the room: a picture in few colours. N pixels of 8-bit RGB.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pom/io/image.h"

namespace pom::io::detail {

struct Indexed {
  std::vector<Rgb> palette;
  std::vector<std::uint8_t> pixels;  // N, of the palette
};

// At most `most` (1 to 256) colours. A picture that has no more keeps its own; else boxes of colours are cut
// where that lessens the squared error most, and each pixel takes the nearest of their means. A function of
// the picture alone.
Indexed to_palette(std::span<const std::uint8_t> rgb, int most);

}  // namespace pom::io::detail
