// The judge of classes of shapes: recognition, variety, and distances by the features of a network that has
// learnt from drawings alone. N pictures.
#include <algorithm>
#include <optional>

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>

#include "cli/eval/eval.h"
#include "cli/experiment/judge.h"
#include "pom/data/shapes.h"
#include "pom/eval/feature_scores.h"
#include "pom/eval/frechet.h"
#include "pom/eval/shapes_eval.h"

namespace pom::cli::experiment {
namespace {

namespace fs = std::filesystem;

// Kind and hue together: a model that draws each kind in one hue has little variety.
double judge_inception(const eval::Verdicts& verdicts) {
  const at::Tensor kinds = verdicts.kind_scores.to(at::kDouble).log_softmax(1),
                   hues = verdicts.hue_scores.to(at::kDouble).log_softmax(1);
  const at::Tensor both = (kinds.unsqueeze(2) + hues.unsqueeze(1)).flatten(1);
  return eval::inception_score(both, {.splits = 1}).mean;
}

class ShapesJudge : public Judge {
 public:
  explicit ShapesJudge(const JudgeRoom& room) : room_(room), judge_(open(room)) {
    classes_ = eval::shapes_named(data::shape_names());
    const std::int64_t kinds = std::ssize(classes_), each = (room.config.count + kinds - 1) / kinds;
    asked_ = eval::each_so_often(classes_, each + each % 2);  // halves have as many of each kind
    const std::vector<std::int64_t> many =
        eval::each_so_often(classes_, (room.config.reference + kinds - 1) / kinds);
    const at::Tensor drawings = drawn(eval::DrawnFor::reference, many);
    reference_ = judge_.look(drawings);
    gaussian_.emplace(eval::fit_gaussian(reference_.features));
    random_.emplace(room, drawings);
    like_ = eval::measure(reference_, many, classes_).diversity;
  }

  Samples samples(const fs::path& model, const generate::Request& how, std::int64_t seed,
                  const fs::path& sheet) override {
    const at::Tensor pictures = sample(model, how, seed);
    if (!sheet.empty()) write_sheet(pictures, sheet);
    return {seed, pictures, random_->early(pictures)};
  }

  Samples drawings(const Dose* dose) override {
    at::Tensor pictures = drawn(eval::DrawnFor::yardstick, asked_);
    if (dose) pictures = dose->spoilt(pictures);
    return {0, pictures, random_->early(pictures)};
  }

  Scores scores(const Samples& samples) const override {
    const eval::Verdicts seen = judge_.look(samples.pictures);
    const eval::Measures measures = eval::measure(seen, asked_, classes_);
    const std::int64_t many = reference_.features.size(0), own_count = seen.features.size(0);
    const std::int64_t stride = std::max<std::int64_t>(1, many / own_count);  // as many, of all kinds
    const at::Tensor few = reference_.features.slice(0, 0, many, stride);
    const eval::Neighbours near = eval::neighbours(few, seen.features, {.k = 3});
    const eval::Diversity& own = measures.diversity;
    Scores scores = frechet_scores(seen.features, *gaussian_);
    const Scores others = {{"recognised", measures.recognised},
                           {"inception", judge_inception(seen)},
                           {"precision", near.precision},
                           {"recall", near.recall},
                           {"position", (own.x / like_.x + own.y / like_.y) / 2},
                           {"size", own.log2_radius / like_.log2_radius},
                           {"hue", own.hue_entropy / like_.hue_entropy}};
    for (const Scores& more : {random_->scores(samples), others})
      scores.insert(scores.end(), more.begin(), more.end());
    return scores;
  }

 private:
  static eval::Judge open(const JudgeRoom& room) {
    const JudgeFiles files = judge_files(room);
    if (!files.learnt.empty()) {
      eval::Judge judge = eval::Judge::read(files.learnt, room.canvas());
      if (files.learnt != files.own) judge.write(files.own);
      return judge;
    }
    eval::JudgeConfig config;
    config.canvas = room.canvas();
    config.seed = static_cast<std::uint64_t>(room.config.seed);
    config.steps = room.config.steps;
    Watch watch(room.signals, room.quiet, "training the judge", "step");
    const eval::Judge judge = eval::Judge::train(
        config, [&](std::int64_t step, std::int64_t total, double) { watch(step, total); });
    judge.write(files.own);
    return judge;
  }

  at::Tensor drawn(eval::DrawnFor purpose, const std::vector<std::int64_t>& kinds) const {
    const auto seed = static_cast<std::uint64_t>(room_.config.seed);
    return eval::draw(purpose, seed, 0, kinds, room_.canvas()).pictures;
  }

  at::Tensor sample(const fs::path& model, const generate::Request& how, std::int64_t seed) const {
    generate::Engine engine(model, room_.device);
    check(eval::shapes_named(engine.config().classes) == classes_,
          "experiment: judge shapes: expected a model of all shapes, got other classes");
    generate::Request request = how;
    request.class_name = "all";
    request.count = std::ssize(asked_) / std::ssize(classes_);
    request.width = room_.canvas().width, request.height = room_.canvas().height;
    request.seed = {(room_.config.seed * 1000 + seed) * 1'000'000};
    return sample_pictures(room_, engine, engine.resolve(request));
  }

  // The first of each kind, a row each.
  void write_sheet(const at::Tensor& pictures, const fs::path& path) const {
    const std::int64_t kinds = std::ssize(classes_), each = pictures.size(0) / kinds,
                       columns = std::min<std::int64_t>(each, 10);
    const at::Tensor few = pictures.unflatten(0, {kinds, each}).slice(1, 0, columns).flatten(0, 1);
    write_picture_sheet(few.contiguous(), columns, path);
  }

  JudgeRoom room_;
  eval::Judge judge_;
  std::vector<std::int64_t> classes_, asked_;
  eval::Verdicts reference_;
  std::optional<eval::FrechetReference> gaussian_;  // of its features
  std::optional<RandomFeatures> random_;
  eval::Diversity like_;  // of the drawings
};

}  // namespace

std::unique_ptr<Judge> make_shapes_judge(const JudgeRoom& room) {
  return std::make_unique<ShapesJudge>(room);
}

}  // namespace pom::cli::experiment
