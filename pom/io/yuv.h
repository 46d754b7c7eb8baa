// Private to the room: RGB as luma and colour differences of 8 bits in the limited range (16 to 235, 16 to
// 240).
#pragma once

#include <cstdint>

#include "pom/io/image.h"

namespace pom::io::detail {

// Shares of red and blue in luma.
struct YuvMatrix {
  double red, blue;
};
inline constexpr YuvMatrix bt601 = {0.299, 0.114}, bt709 = {0.2126, 0.0722};

struct YuvPlane {
  std::uint8_t* data;
  std::int64_t stride;  // bytes
};

// An 8-bit RGB picture into three planes of its size.
void to_yuv444(const Image& image, const YuvMatrix& matrix, const YuvPlane (&planes)[3]);
// Colour at half the resolution: the mean of each 2 x 2 pixels, taken before rounding. Luma is width x
// height, colour (width + 1) / 2 x (height + 1) / 2; where they are larger than the picture, its last row and
// column are repeated.
void to_yuv420(const Image& image, const YuvMatrix& matrix, int width, int height,
               const YuvPlane (&planes)[3]);

}  // namespace pom::io::detail
