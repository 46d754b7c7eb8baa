// Clips of sprites whose prompt changes on the way, as a stream's may: from some frame on they show another
// scene, which goes on where the one before has come to. F frames of H x W pixels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pom/data/sprites.h"

namespace pom::data {

struct SpriteShot {
  std::int64_t first = 0;  // frame, from which on the clip shows
  SpriteClip clip;         // this
};

// `next` as it follows `before` at a time. Each sprite begins where the one of its number was, or as near to
// it as its way allows, and as large; what it is, its colour and its way are its own. The ground stays where
// the caption of `next` does not name it, or names the same; where it would hide a sprite, `next` names its
// own.
SpriteClip continued(const SpriteClip& before, SpriteClip next, double seconds, std::int64_t width,
                     std::int64_t height);

// Clip `index` of a seed, with the scene that follows where it is one of options.changes: the first shot is
// that of sprite_clip_at, the second begins at a multiple of options.change_every.
std::vector<SpriteShot> sprite_shots_at(const SpriteOptions& options, std::uint64_t seed, std::int64_t index,
                                        const ClipFormat& format);

// out: planar (3, F, H, W), as draw_clip has it. Shots are in order, the first from frame 0.
void draw_shots(std::span<const SpriteShot> shots, const ClipFormat& format, std::span<std::uint8_t> out);

// The captions of so many equal parts of a clip of `frames` frames; a shot begins with a part.
std::vector<std::string> captions_of_parts(std::span<const SpriteShot> shots, std::int64_t parts,
                                           std::int64_t frames);

}  // namespace pom::data
