// How much of each pixel a shape covers: what drawings are made of, for whoever compares pictures with them.
// W x H pixels; the renderer is that of draw_shape.cpp.
#pragma once

#include <cstdint>
#include <span>

#include "pom/data/shapes.h"

namespace pom::data {

// Pixels from (left, top) on, which has to be within the picture.
struct PixelBox {
  std::int64_t left = 0, top = 0, width = 0, height = 0;

  std::int64_t pixels() const { return width * height; }
};

// out: (height, width) of the box, 0 to 1. An edge is `soft` pixels wide: 1 in drawings.
void cover_shape(const Shape& shape, std::int64_t width, std::int64_t height, const PixelBox& box, float soft,
                 std::span<float> out);

}  // namespace pom::data
