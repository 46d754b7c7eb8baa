// Sprites as files that data.kind = "clips" trains on: a clip each, and captions.csv.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "pom/data/sprites.h"

namespace pom::cli {

inline constexpr const char* captions_file = "captions.csv";

struct SpriteFiles {
  std::filesystem::path folder;
  data::ClipFormat format;
  std::int64_t count = 1;
  std::uint64_t seed = 0;
};

// The ending of the clips' names: .mp4, or .gif where this build has no FFmpeg.
std::string sprite_ending();

// 000000.mp4, … and, at the end, the captions of those that were written: all of them, or fewer where `stop`
// comes true. Returns how many.
std::int64_t write_sprites(const SpriteFiles& files, const std::atomic<bool>& stop,
                           const std::function<void(std::int64_t done)>& on_clip);

}  // namespace pom::cli
