// The file of a clip in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pom/io/image.h"
#include "pom/io/png.h"

namespace pom::serve {

struct ClipFile {
  std::string bytes, extension;  // "mp4", or "gif" where this build has no FFmpeg
};
// Every so many frames of such a file, at most so many; needs FFmpeg. `stop` is asked between frames: then
// there may be none.
std::vector<io::Image> clip_frames(const ClipFile& file, std::int64_t every, std::int64_t most,
                                   const std::function<bool()>& stop);
ClipFile clip_file(std::span<const io::Image> frames, double fps, const std::vector<io::TextEntry>& text);

}  // namespace pom::serve
