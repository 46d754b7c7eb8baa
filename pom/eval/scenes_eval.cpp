#include "pom/eval/scenes_eval.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

// Far from the small numbers that people give to trainings.
std::uint64_t seed_of_scenes(std::uint64_t seed) {
  return 0x7363'656e'6573'0000 ^ (seed << 32) ^ (seed >> 32);
}

std::int64_t scene_split_named(const std::string& name) {
  const std::vector<std::string>& all = scene_splits();
  const auto found = std::ranges::find(all, name);
  check(found != all.end(),
        "eval: splits: expected training, new_wordings, new_pairs, new_relations or new_all, got \"", name,
        "\"");
  return found - all.begin();
}

}  // namespace

const std::vector<std::string>& scene_splits() {
  static const std::vector<std::string> names = {"training", "new_wordings", "new_pairs", "new_relations",
                                                 "new_all"};
  return names;
}

std::vector<SceneQuestion> scene_questions(const std::vector<std::string>& splits, std::uint64_t seed,
                                           std::int64_t count, data::SceneOptions options) {
  std::vector<SceneQuestion> questions;
  for (const std::string& name : splits) {
    const std::int64_t split = scene_split_named(name);
    options.split = name;
    for (std::int64_t i = 0; i < count; ++i) {
      data::Scene scene = data::scene_at(options, seed_of_scenes(seed), i);
      std::string caption = data::scene_caption(scene);
      questions.push_back({split, i, std::move(scene), std::move(caption)});
    }
  }
  return questions;
}

at::Tensor draw_scenes(std::span<const SceneQuestion> questions, const Canvas& canvas) {
  at::Tensor pictures = at::empty({std::ssize(questions), 3, canvas.height, canvas.width}, at::kByte);
  const std::int64_t size = 3 * canvas.height * canvas.width;
  auto* pixels = pictures.data_ptr<std::uint8_t>();
  const data::ClipFormat format{.width = canvas.width, .height = canvas.height, .frames = 1};
  at::parallel_for(0, std::ssize(questions), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      data::draw_scene(questions[static_cast<std::size_t>(i)].scene, format,
                       {pixels + i * size, static_cast<std::size_t>(size)});
  });
  return pictures;
}

std::vector<SceneVerdict> judge_scenes(const at::Tensor& pictures,
                                       const std::function<void(std::int64_t)>& on_some) {
  check(pictures.dim() == 4, "eval: pictures: expected (N, 3, H, W), got ", pictures.sizes());
  const std::int64_t count = pictures.size(0);
  std::vector<SceneVerdict> verdicts(static_cast<std::size_t>(count));
  const std::int64_t some = 8 * at::get_num_threads();  // at a time, so that a signal is heard soon
  for (std::int64_t from = 0; from < count; from += some) {
    const std::int64_t to = std::min(from + some, count);
    at::parallel_for(from, to, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        verdicts[static_cast<std::size_t>(i)] = judge_scene(pictures[i]);
    });
    if (on_some) on_some(to);
  }
  return verdicts;
}

}  // namespace pom::eval
