// How two images, or two clips, differ: in pixels and grey levels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "pom/io/image.h"

namespace pom::cli {

struct Difference {
  std::string shape;                 // where they differ in size, kind or number of frames: how; else empty
  std::int64_t pixels = 0, all = 0;  // pixels that differ, of how many
  std::int64_t frames = 0, of_frames = 1;  // likewise
  int largest = 0;                         // in grey levels

  bool none() const { return shape.empty() && pixels == 0; }
  std::string text() const;  // "the pixels agree", "3 of 4096 pixels differ, by at most 1 grey level"
};

Difference compare(const io::Image& before, const io::Image& now);
// Frame by frame, as both are decoded.
Difference compare_clips(const std::filesystem::path& before, const std::filesystem::path& now);

// The number of frames of a clip's file, which is decoded for it, and their size.
struct ClipShape {
  std::int64_t width = 0, height = 0, frames = 0;
};
ClipShape clip_shape(const std::filesystem::path& clip);

}  // namespace pom::cli
