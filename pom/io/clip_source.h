// Private to the room: where the frames of a clip come from, for ClipReader.
#pragma once

#include <filesystem>
#include <memory>

#include "pom/io/clip.h"

namespace pom::io::detail {

class FrameSource {
 public:
  virtual ~FrameSource() = default;
  virtual bool next(Image& frame) = 0;

  ClipInfo info;
};

// `reading` has been checked.
std::unique_ptr<FrameSource> open_decoded(const std::filesystem::path& path, const ClipReading& reading);
std::unique_ptr<FrameSource> open_frames_of(const std::filesystem::path& folder, const ClipReading& reading);

}  // namespace pom::io::detail
