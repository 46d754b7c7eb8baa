// Pictures scaled as Pillow scales them, to the bit: weights of 22 bits, first across, then down, each
// rounded to 8 bits (newer Pillows go down first where that side alone shrinks, which no crop does). For what
// has to be as others made it; training's own way is resize.h. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pom/io/image.h"

namespace pom::data {

enum class Filter { box, bilinear, bicubic };  // of Pillow's names; wider where pictures become smaller

// An 8-bit RGB picture with this size.
io::Image resample(const io::Image& picture, int width, int height, Filter filter);

// The part of `picture` that begins at column x and row y, which must be in it.
io::Image cut_out(const io::Image& picture, int x, int y, int width, int height);

// How pictures and frames are brought to one size:
//   adm         ADM's, DiT's and SiT's: halved with boxes while the shorter side is twice the size or more,
//               then bicubic, the middle; squares alone
//   homm        the authors' pictures: the shorter side bilinear, the middle
//   homm-clips  the authors' clips: the shorter side 1.2 times that of the size, bilinear, the middle
//   cover       as training reads folders (resize.h): the least scale that covers the size, the middle
const std::vector<std::string>& crop_names();
// An unknown name, and a size that the crop cannot give, are errors.
void check_crop(const std::string& crop, std::int64_t width, std::int64_t height);

// out: planar (3, height, width); the picture is 8-bit RGB.
void crop_picture(const io::Image& picture, const std::string& crop, std::int64_t width, std::int64_t height,
                  std::uint8_t* out);

}  // namespace pom::data
