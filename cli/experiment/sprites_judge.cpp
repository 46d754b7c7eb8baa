// The judge of clips of one moving sprite: by geometry, without learning. Each clip is looked at as a whole,
// and at its first and last frames alone. N clips of F frames.
#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "cli/eval/eval.h"
#include "cli/experiment/judge.h"
#include "pom/eval/clip_scores.h"
#include "pom/eval/frechet.h"
#include "pom/eval/sprites_eval.h"

namespace pom::cli::experiment {
namespace {

namespace fs = std::filesystem;
using eval::SpriteAgreement, eval::SpriteQuestion, eval::SpriteVerdict;

struct Looks {
  SpriteAgreement whole, first, last;
  bool steady = false;  // the first frames show the kind that the last ones show
  double speed = 0;
};

Looks look_at(const SpriteQuestion& question, const at::Tensor& clip, double fps) {
  const std::int64_t frames = clip.size(1), part = std::max<std::int64_t>(2, frames / 4);
  const data::Sprite& sprite = question.scene.sprites.front();
  const SpriteVerdict whole = eval::judge_sprite(clip, fps),
                      first = eval::judge_sprite(clip.slice(1, 0, part).contiguous(), fps),
                      last = eval::judge_sprite(clip.slice(1, frames - part).contiguous(), fps);
  return {.whole = eval::compare(sprite, whole),
          .first = eval::compare(sprite, first),
          .last = eval::compare(sprite, last),
          .steady = first.found && last.found && first.kind == last.kind && first.hue == last.hue,
          .speed = whole.found && whole.moves ? whole.speed : 0};
}

class SpritesJudge : public Judge {
 public:
  explicit SpritesJudge(const JudgeRoom& room) : room_(room) {
    const data::DataConfig& data = room.recipe.data;
    format_ = {.width = data.size[0], .height = data.size[1], .frames = data.frames, .fps = data.fps};
    check(format_.frames >= 4, "experiment: judge sprites: expected clips of at least 4 frames, got ",
          format_.frames);
    const std::vector<std::string>& asked = room.config.metrics;
    const auto is_distance = [](const std::string& name) { return name.starts_with("frechet"); };
    if (!asked.empty() && std::ranges::none_of(asked, is_distance)) return;
    const std::vector<SpriteQuestion> all = questions_of(of_reference, room.config.reference);
    for (std::int64_t first = 0; first < std::ssize(all); first += some_clips) {
      const auto end = std::min<std::int64_t>(first + some_clips, std::ssize(all));
      const std::vector<SpriteQuestion> some(all.begin() + first, all.begin() + end);
      const at::Tensor drawings = eval::draw_part(some, format_, 0);
      frames_.push_back(frame_rows(drawings)), stacks_.push_back(stack_rows(drawings));
    }
  }

  Samples samples(const fs::path& model, const generate::Request& how, std::int64_t seed,
                  const fs::path& sheet) override {
    const at::Tensor clips = sample(model, how, seed, questions_of(seed));
    if (!sheet.empty()) write_sheet(clips, sheet);
    return {seed, clips, {}};
  }

  Samples drawings(const Dose* dose) override {
    const at::Tensor clips = eval::draw_part(questions_of(of_floor), format_, 0);
    return {of_floor, dose ? dose->spoilt(clips) : clips, {}};
  }

  Scores scores(const Samples& samples) const override {
    const std::vector<SpriteQuestion> questions = questions_of(samples.seed);
    const at::Tensor& clips = samples.pictures;
    const std::vector<Looks> seen = looks(questions, clips),
                             drawn = looks(questions, eval::draw_part(questions, format_, 0));
    double kind = 0, hue = 0, direction = 0, first = 0, last = 0, steady = 0, error = 0, misfit = 0,
           found = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const Looks& look = seen[i];
      kind += look.whole.kind, hue += look.whole.hue, direction += look.whole.direction;
      first += look.first.kind, last += look.last.kind, steady += look.steady;
      error += std::abs(look.speed - drawn[i].speed);
      if (look.whole.found) misfit += look.whole.misfit, ++found;
    }
    const auto count = static_cast<double>(seen.size());
    if (found == 0) misfit = std::numeric_limits<double>::quiet_NaN();  // and not the best there is
    return {{"kind", kind / count},
            {"hue", hue / count},
            {"direction", direction / count},
            {"kind_first", first / count},
            {"kind_last", last / count},
            {"settles", (last - first) / count},
            {"steady", steady / count},
            {"frechet_frames", distance(frame_rows(clips), frames_)},
            {"frechet_stacks", distance(stack_rows(clips), stacks_)},
            {"speed_error", error / count},
            {"misfit", misfit / found}};
  }

 private:
  static constexpr std::int64_t of_reference = most_seed + 1, of_floor = 0;  // in place of a run's seed
  static constexpr std::int64_t some_clips = 256;                            // at a time

  std::vector<SpriteQuestion> questions_of(std::int64_t seed, std::int64_t count) const {
    const auto key = static_cast<std::uint64_t>(room_.config.seed * 1000 + seed) + 0x6a756467650000ull;
    return eval::sprite_questions({"training"}, key, count);
  }
  std::vector<SpriteQuestion> questions_of(std::int64_t seed) const {
    return questions_of(seed, room_.config.count);
  }

  // Of each clip the first frame and every fourth after it, as means over 8 x 8 areas: (N, rows, 192).
  static at::Tensor frame_rows(const at::Tensor& clips) {
    return pooled(clips.slice(2, 0, clips.size(2), 4), eval::frame_side);
  }
  // 8 frames that follow each other, as means over 4 x 4 areas: (N, rows, 384); no rows of shorter clips.
  static at::Tensor stack_rows(const at::Tensor& clips) {
    const std::int64_t stacks = clips.size(2) / eval::stack_frames;
    return pooled(clips.slice(2, 0, stacks * eval::stack_frames), eval::stack_side)
        .reshape({clips.size(0), stacks, eval::stack_frames * 3 * eval::stack_side * eval::stack_side});
  }
  // (N, 3, F, H, W) uint8 -> (N, F, 3 side side), 0 to 1.
  static at::Tensor pooled(const at::Tensor& clips, std::int64_t side) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& some : clips.split(some_clips)) {
      const std::int64_t N = some.size(0), F = some.size(2);
      const at::Tensor frames = some.transpose(1, 2).flatten(0, 1).to(at::kFloat).div_(255);
      all.push_back(F == 0 ? at::zeros({N, 0, 3 * side * side})
                           : at::adaptive_avg_pool2d(frames, {side, side}).view({N, F, 3 * side * side}));
    }
    return at::cat(all);
  }

  // Without the bias of few clips: twice the distance of all, less the mean of those of every second clip,
  // for rows of one clip are alike. Not a number where there are too few.
  static double distance(const at::Tensor& rows, const std::vector<at::Tensor>& reference) {
    constexpr double none = std::numeric_limits<double>::quiet_NaN();
    if (reference.empty() || rows.size(0) < 4 || rows.size(1) == 0) return none;
    const eval::FrechetReference to(eval::fit_gaussian(at::cat(reference).flatten(0, 1)));
    const auto of_clips = [&](std::int64_t first, std::int64_t stride) {
      return to.to(rows.slice(0, first, rows.size(0), stride).flatten(0, 1));
    };
    return 2 * of_clips(0, 1) - (of_clips(0, 2) + of_clips(1, 2)) / 2;
  }

  at::Tensor sample(const fs::path& model, const generate::Request& how, std::int64_t seed,
                    const std::vector<SpriteQuestion>& questions) const {
    generate::Engine engine(model, room_.device);
    generate::Request request = how;
    request.prompt = {""};
    request.width = format_.width, request.height = format_.height;
    request.frames = std::to_string(format_.frames);
    generate::Job job = engine.resolve(request);
    job.items.resize(questions.size(), job.items.front());
    for (std::size_t i = 0; i < questions.size(); ++i) {
      job.items[i].prompt = {questions[i].caption};
      job.items[i].seed = {(room_.config.seed * 1000 + seed) * 1'000'000 + static_cast<std::int64_t>(i)};
    }
    eval::PartKeeper kept({format_.frames, {1}}, std::ssize(questions), format_.height, format_.width);
    Watch watch(room_.signals, room_.quiet, "sampling", "evaluation");
    generate::Observer observer;
    observer.stop = &room_.signals.asked();
    observer.on_evaluation = [&](std::int64_t done, std::int64_t total) { watch(done, total); };
    observer.on_frames = [&](generate::Frames&& frames) {
      kept.take(frames.item, frames.first, frames.images);
    };
    const std::int64_t usual = engine.device().starts_with("cuda") ? 256 : 16;
    engine.run(job, {.batch = room_.batch > 0 ? room_.batch : usual}, observer);
    return kept.part(0);
  }

  std::vector<Looks> looks(const std::vector<SpriteQuestion>& questions, const at::Tensor& clips) const {
    std::vector<Looks> all(questions.size());
    at::parallel_for(0, std::ssize(questions), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto place = static_cast<std::size_t>(i);
        all[place] = look_at(questions[place], clips[i], format_.fps);
      }
    });
    return all;
  }

  // The first clips, a row each.
  void write_sheet(const at::Tensor& clips, const fs::path& path) const {
    const at::Tensor few = clips.slice(0, 0, std::min<std::int64_t>(clips.size(0), 8));
    const at::Tensor frames = few.permute({0, 2, 1, 3, 4}).flatten(0, 1).contiguous();
    write_picture_sheet(frames, format_.frames, path);
  }

  JudgeRoom room_;
  data::ClipFormat format_;
  std::vector<at::Tensor> frames_, stacks_;  // of drawings, (N, rows, F) each
};

}  // namespace

std::unique_ptr<Judge> make_sprites_judge(const JudgeRoom& room) {
  return std::make_unique<SpritesJudge>(room);
}

}  // namespace pom::cli::experiment
