// Says what a clip of one sprite shows: its shape, its hue, and which way it goes. It was never taught: it
// finds the sprite by its colour, and compares it with drawings of all shapes. F frames of H x W pixels.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/data/sprites.h"

namespace pom::eval {

struct SpriteVerdict {
  bool found = false;          // whether anything stands out from the ground; else the rest means nothing
  std::int64_t kind = 0;       // of data::shape_names()
  std::int64_t hue = 0;        // of data::hue_names()
  bool moves = false;          // else the directions mean nothing
  std::int64_t direction = 0;  // of data::direction_names(): from where it was to where it goes, on the whole
  std::int64_t line = 0;       // of the first four of them: along which it moves, to or fro
  double speed = 0;            // shorter sides of the picture a second, on the whole
  double misfit = 0;  // of the drawing, a share of the sprite's area: 0 where it is drawn as it should be
  std::vector<double> x, y;  // its centre in each frame, in shorter sides from the middle, y upwards
};

// clip: (3, F, H, W) uint8 with F at least 2. What leaves on one side and comes in on the other is followed.
SpriteVerdict judge_sprite(const at::Tensor& clip, double fps);

// What of a description a verdict confirms. A drift agrees in its direction, a bounce in its line, and what
// stays in place does not move.
struct SpriteAgreement {
  bool kind = false, hue = false, direction = false;
};
SpriteAgreement compare(const data::Sprite& sprite, const SpriteVerdict& verdict);

// A long clip in parts of so many frames, the last of which ends with the clip: whether it stays what it was.
std::vector<SpriteVerdict> judge_parts(const at::Tensor& clip, double fps, std::int64_t frames);

// How often verdicts agreed.
struct SpriteScores {
  std::int64_t clips = 0, kinds = 0, hues = 0, directions = 0;

  void add(const SpriteAgreement& agreement);
  double kind_rate() const { return rate(kinds); }
  double hue_rate() const { return rate(hues); }
  double direction_rate() const { return rate(directions); }

 private:
  double rate(std::int64_t count) const {
    return clips > 0 ? static_cast<double>(count) / static_cast<double>(clips) : 0;
  }
};

}  // namespace pom::eval
