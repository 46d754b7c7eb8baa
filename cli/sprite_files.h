// Sprites and scenes as files: a clip each, or a picture of a scene that does not move, and captions.csv.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "pom/data/dataset.h"

namespace pom::cli {

inline constexpr const char* captions_file = "captions.csv";

struct SpriteFiles {
  std::filesystem::path folder;
  data::DataConfig config;  // sprites or scenes
  std::int64_t count = 1;
  std::uint64_t seed = 0;

  // Of scenes with one frame, which data.kind = "clips" does not take.
  bool pictures() const { return config.kind == "scenes" && config.frames == 1; }
};

// 000000.mp4 (.gif where this build has no FFmpeg), or 000000.png of pictures, … and, at the end, the
// captions of those that were written: all of them, or fewer where `stop` comes true. Returns how many.
std::int64_t write_sprites(const SpriteFiles& files, const std::atomic<bool>& stop,
                           const std::function<void(std::int64_t done)>& on_clip);

}  // namespace pom::cli
