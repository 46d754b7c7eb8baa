// What a recipe may ask of a data set, as far as that is known before there is one. No torch, so that it
// fuzzes fast.
#include "pom/base/error.h"
#include "pom/data/dataset.h"
#include "pom/io/image.h"

namespace pom::data {

void check_picture_size(const DataConfig& config) {
  check(config.size.size() == 2, "data: size: expected width and height, got ", config.size.size(),
        config.size.size() == 1 ? " number" : " numbers");
  io::check_size("data: size", config.size[0], config.size[1]);
}

void check_clip_length(const DataConfig& config) {
  check(config.frames >= 1, "data: frames: expected at least 1, got ", config.frames);
  check(config.fps > 0 && config.fps <= 1000, "data: fps: expected above 0 and at most 1000, got ",
        config.fps);
  check(config.frames <= io::max_pixels / (config.size[0] * config.size[1]),
        "data: frames: expected at most ", io::max_pixels, " pixels in a clip, got ", config.frames,
        " frames of ", config.size[0], "x", config.size[1]);
}

}  // namespace pom::data
