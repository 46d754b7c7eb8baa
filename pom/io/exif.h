// The one thing of EXIF that changes a picture: how the camera was held.
#pragma once

#include <cstddef>
#include <span>

#include "pom/io/image.h"

namespace pom::io {

// The orientation (1 to 8) in an APP1 marker's bytes, "Exif\0\0" and TIFF after it. 1, upright, where they
// say nothing of it or are damaged: a picture is worth more than its notes.
int exif_orientation(std::span<const std::byte> marker);

// The picture as it was seen, from one stored with that orientation:
// 1 as it is, 2 mirrored left to right, 3 turned by 180°, 4 mirrored top to bottom, 5 mirrored on the
// diagonal from the top left, 6 to be turned by 90° clockwise, 7 mirrored on the other diagonal, 8 by 90°
// anticlockwise.
Image upright(Image image, int orientation);

}  // namespace pom::io
