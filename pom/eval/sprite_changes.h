// What a model for clips is asked whose prompt changes on the way: streams of one sprite that becomes
// another, judged some time after the change. F frames of H x W pixels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pom/data/sprite_shots.h"
#include "pom/eval/sprites_eval.h"

namespace pom::eval {

// Which frames of a stream are judged.
struct ChangeFrames {
  std::int64_t change = 24;  // the first one of the second prompt
  std::int64_t wait = 16;    // from there to the first one that is judged
  std::int64_t judged = 16;  // so many

  std::int64_t first() const { return change + wait; }
  std::int64_t last() const { return first() + judged; }  // frames of a stream in all
};

// The two prompts of each stream, with the scenes they are of; the second goes on where the first has come
// to. Of `after`, scene.named says whether the caption names the ground.
struct ChangeQuestions {
  std::vector<SpriteQuestion> before, after;
};

// Pairs and wordings are those of training; every second stream is to keep its ground, which the second
// caption then does not name (but where it would hide the sprite). A question is the same however many are
// asked.
ChangeQuestions change_questions(std::uint64_t seed, std::int64_t count, const ChangeFrames& frames,
                                 const data::ClipFormat& format);

// What a clip (3, F, H, W) of 8 bits is over, of data::ground_names(): that of the nearest colour to the
// middle one of all its pixels, most of which show it.
std::int64_t ground_of(const at::Tensor& clip);

// How often streams became what they should, by whether the second caption names the ground.
struct ChangeScores {
  SpriteScores named, unnamed;
  std::int64_t named_grounds = 0, unnamed_grounds = 0;  // that are what they should be

  // `clips` (N, 3, F, H, W) are what was judged.
  void add(std::span<const SpriteQuestion> after, std::span<const SpriteAgreement> agreements,
           const at::Tensor& clips);
  SpriteScores all() const;
  std::int64_t grounds() const { return named_grounds + unnamed_grounds; }
};

struct ChangesReport {
  ChangeScores drawings;        // of the same scenes
  ChangeScores changed, alone;  // streams with the change, and of the second prompt from the beginning
};

}  // namespace pom::eval
