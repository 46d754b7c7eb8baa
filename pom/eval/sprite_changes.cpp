#include "pom/eval/sprite_changes.h"

#include "pom/base/error.h"
#include "pom/eval/sprites_report.h"

namespace pom::eval {
namespace {

// Far from trainings, and from the scenes of other reports.
std::uint64_t changing_scenes_of(std::uint64_t seed) {
  return 0x6368'616e'6765'0000 ^ (seed << 32) ^ (seed >> 32);
}

}  // namespace

ChangeQuestions change_questions(std::uint64_t seed, std::int64_t count, const ChangeFrames& frames,
                                 const data::ClipFormat& format) {
  data::SpriteOptions options;
  options.two = 0;
  const double seconds = static_cast<double>(frames.change) / format.fps;
  ChangeQuestions questions;
  for (std::int64_t i = 0; i < count; ++i) {
    const data::SpriteClip before = data::sprite_clip_at(options, changing_scenes_of(seed), 2 * i);
    data::SpriteClip next = data::sprite_clip_at(options, changing_scenes_of(seed), 2 * i + 1);
    next.named = i % 2 == 0;
    const data::SpriteClip after = data::continued(before, next, seconds, format.width, format.height);
    questions.before.push_back({0, i, before, data::caption_of(before)});
    questions.after.push_back({0, i, after, data::caption_of(after)});
  }
  return questions;
}

void ChangeScores::add(std::span<const SpriteQuestion> after, std::span<const SpriteAgreement> agreements) {
  check(after.size() == agreements.size(), "ChangeScores: expected an answer to each of ", after.size(),
        " questions, got ", agreements.size());
  for (std::size_t i = 0; i < after.size(); ++i) (after[i].scene.named ? named : unnamed).add(agreements[i]);
}

SpriteScores ChangeScores::all() const {
  return added(named, unnamed);
}

}  // namespace pom::eval
