// The file of a clip in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pom/io/image.h"
#include "pom/io/png.h"

namespace pom::serve {

struct ClipFile {
  std::string bytes, extension;  // "mp4", or "gif" where this build has no FFmpeg
};
// All frames of such a file, of at most so many pixels in all; needs FFmpeg.
std::vector<io::Image> clip_frames(const ClipFile& file, std::int64_t most_pixels);
ClipFile clip_file(std::span<const io::Image> frames, double fps, const std::vector<io::TextEntry>& text);

}  // namespace pom::serve
