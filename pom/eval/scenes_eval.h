// What a model for pictures of scenes is asked, and what the judge of scenes says of its answers. N pictures
// of H x W pixels.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/drawings.h"
#include "pom/eval/scene_judge.h"

namespace pom::eval {

// training, new_wordings, new_pairs, new_relations, new_all: from what a model has seen to what it has not.
const std::vector<std::string>& scene_splits();

struct SceneQuestion {
  std::int64_t split = 0;   // of scene_splits()
  std::int64_t number = 0;  // within its split
  data::Scene scene;
  std::string caption;
};

// `count` of each of these splits, of scenes as `options` say but for their split. A question is the same
// whichever others are asked, and no training of that seed has its scene.
std::vector<SceneQuestion> scene_questions(const std::vector<std::string>& splits, std::uint64_t seed,
                                           std::int64_t count, data::SceneOptions options = {});

// The questions' own scenes, drawn: (N, 3, H, W) uint8.
at::Tensor draw_scenes(std::span<const SceneQuestion> questions, const Canvas& canvas);

// Pictures (N, 3, H, W) uint8, on all threads. `on_some` hears how many are done, and may throw.
std::vector<SceneVerdict> judge_scenes(const at::Tensor& pictures,
                                       const std::function<void(std::int64_t)>& on_some = {});

}  // namespace pom::eval
