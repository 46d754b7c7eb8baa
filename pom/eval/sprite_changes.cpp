#include "pom/eval/sprite_changes.h"

#include <array>

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

std::int64_t ground_of(const at::Tensor& clip) {
  const at::Tensor middle = std::get<0>(clip.flatten(1).median(1)).to(at::kFloat).div(255);
  const float* seen = middle.const_data_ptr<float>();
  std::int64_t best = 0;
  float least = 9;
  for (std::int64_t ground = 0; ground < std::ssize(data::ground_names()); ++ground) {
    const std::array<float, 3> named = data::ground_colour(ground);
    float squares = 0;
    for (std::size_t c = 0; c < 3; ++c) squares += (named[c] - seen[c]) * (named[c] - seen[c]);
    if (squares < least) least = squares, best = ground;
  }
  return best;
}

void ChangeScores::add(std::span<const SpriteQuestion> after, std::span<const SpriteAgreement> agreements,
                       const at::Tensor& clips) {
  check(after.size() == agreements.size() && std::ssize(after) == clips.size(0),
        "ChangeScores: expected a clip and an answer to each of ", after.size(), " questions, got ",
        clips.size(0), " and ", agreements.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    const data::SpriteClip& scene = after[i].scene;
    (scene.named ? named : unnamed).add(agreements[i]);
    if (ground_of(clips[static_cast<std::int64_t>(i)]) == scene.ground)
      ++(scene.named ? named_grounds : unnamed_grounds);
  }
}

SpriteScores ChangeScores::all() const {
  return added(named, unnamed);
}

}  // namespace pom::eval
