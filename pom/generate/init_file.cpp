#include "pom/generate/init_file.h"

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/clip.h"
#include "pom/io/picture.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

bool is_clip(const fs::path& file) {
  std::error_code ignored;
  return io::is_clip_file_name(file) || fs::is_directory(file, ignored);
}

// 8 bits, without alpha.
io::Image plain(io::Image image, const fs::path& file) {
  check(image.bits == 8 && (image.channels == 1 || image.channels == 3), file.string(),
        ": expected an image of 8 bits, grey or RGB, got ", image.channels, " channels of ", image.bits,
        " bits");
  return image;
}

}  // namespace

InitShape init_shape(const fs::path& file) {
  std::error_code ignored;
  check(fs::exists(file, ignored), "sample: init: no such file: ", shown(file.string()));
  if (!is_clip(file)) {
    const io::Image image = plain(io::read_picture(file), file);
    return {image.width, image.height, 1};
  }
  io::ClipReader reader(file);
  InitShape shape{reader.info().width, reader.info().height, 0};
  for (io::Image frame; reader.next(frame);) ++shape.frames;
  check(shape.frames > 0, file.string(), ": expected a clip, got one without frames");
  return shape;
}

std::vector<io::Image> read_init_frames(const fs::path& file, std::int64_t frames) {
  std::vector<io::Image> images;
  if (is_clip(file)) {
    io::ClipReader reader(file);
    io::Image frame;
    while (std::ssize(images) < frames && reader.next(frame)) images.push_back(frame);
    check(!images.empty(), file.string(), ": expected a clip, got one without frames");
  } else {
    images.push_back(plain(io::read_picture(file), file));
  }
  return images;
}

}  // namespace pom::generate
