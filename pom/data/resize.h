// Pictures brought to the size that training sees: scaled to cover it, the middle kept.
#pragma once

#include <cstdint>
#include <span>

#include "pom/io/image.h"

namespace pom::data {

// The least scale at which the picture covers width x height (the other side is rounded to whole pixels),
// then the middle. A triangle as wide as two pixels of the coarser of both grids: linear where it grows,
// antialiased where it shrinks; a picture of the right size stays as it is. Rounds once. out: planar
// (3, height, width); the picture is 8-bit RGB.
void resize_and_crop(const io::Image& picture, std::int64_t width, std::int64_t height,
                     std::span<std::uint8_t> out);

}  // namespace pom::data
