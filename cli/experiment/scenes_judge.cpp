// The judge of images of several objects from captions: by geometry what is right, by the features of a
// network that has learnt from drawings alone how far all of them are from drawings. N pictures.
#include <algorithm>
#include <optional>

#include "cli/eval/eval.h"
#include "cli/experiment/judge.h"
#include "pom/eval/feature_scores.h"
#include "pom/eval/scene_reader.h"
#include "pom/eval/scenes_report.h"

namespace pom::cli::experiment {
namespace {

namespace fs = std::filesystem;
using eval::SceneQuestion, eval::SceneReader;

// Questions of a seed of their own, which no training has.
constexpr std::int64_t of_reference = most_seed + 1, of_floor = most_seed + 2;

class ScenesJudge : public Judge {
 public:
  explicit ScenesJudge(const JudgeRoom& room) : room_(room), reader_(open(room)) {
    const std::vector<SceneQuestion> many = questions_of(of_reference, room.config.reference);
    const at::Tensor drawings = eval::draw_scenes(many, room.canvas());
    reference_ = reader_.look(drawings).features;
    gaussian_.emplace(eval::fit_gaussian(reference_));
    random_.emplace(room, drawings);
  }

  Samples samples(const fs::path& model, const generate::Request& how, std::int64_t seed,
                  const fs::path& sheet) override {
    const at::Tensor pictures = sample(model, how, seed, questions_of(seed, room_.config.count));
    if (!sheet.empty())
      write_picture_sheet(pictures.slice(0, 0, std::min<std::int64_t>(pictures.size(0), 80)), 10, sheet);
    return {seed, pictures, random_->early(pictures)};
  }

  Samples drawings(const Dose* dose) override {
    at::Tensor pictures = eval::draw_scenes(questions_of(of_floor, room_.config.count), room_.canvas());
    if (dose) pictures = dose->spoilt(pictures);
    return {of_floor, pictures, random_->early(pictures)};
  }

  Scores scores(const Samples& samples) const override {
    const std::vector<SceneQuestion> questions = questions_of(samples.seed, room_.config.count);
    const at::Tensor& pictures = samples.pictures;
    eval::SceneTable table({"training"});
    table.add(questions, eval::judge_scenes(pictures));
    const eval::SceneScores all = table.over_all();
    const SceneReader::Readings seen = reader_.look(pictures);
    std::int64_t read = 0;
    for (std::size_t i = 0; i < questions.size(); ++i)
      read += eval::compare(questions[i].scene, seen.scenes[i]).everything();
    const auto count = static_cast<double>(questions.size());
    const auto share = [&](std::int64_t hits) { return static_cast<double>(hits) / count; };
    const at::Tensor few = reference_.slice(0, 0, pictures.size(0));
    const eval::Neighbours near = eval::neighbours(few, seen.features, {.k = 3});
    Scores scores = frechet_scores(seen.features, *gaussian_);
    const Scores others = {
        {"everything", share(all.everything)},
        {"pairs", share(all.pairs)},
        {"relations", static_cast<double>(all.relations) / static_cast<double>(all.relations_asked)},
        {"counts", share(all.counts)},
        {"fits", share(all.fitting)},
        {"read", share(read)},
        {"precision", near.precision},
        {"recall", near.recall},
        {"misfit", all.mean_misfit()}};
    for (const Scores& more : {random_->scores(samples), others})
      scores.insert(scores.end(), more.begin(), more.end());
    return scores;
  }

 private:
  static SceneReader open(const JudgeRoom& room) {
    const JudgeFiles files = judge_files(room);
    if (!files.learnt.empty()) {
      SceneReader reader = SceneReader::read(files.learnt, room.canvas());
      if (files.learnt != files.own) reader.write(files.own);
      return reader;
    }
    eval::JudgeConfig config = SceneReader::usual_config();
    config.canvas = room.canvas();
    config.seed = static_cast<std::uint64_t>(room.config.seed);
    config.steps = room.config.steps;
    Watch watch(room.signals, room.quiet, "training the judge", "step");
    SceneReader reader = SceneReader::train(
        config, [&](std::int64_t step, std::int64_t total, double) { watch(step, total); });
    reader.write(files.own);
    return reader;
  }

  std::vector<SceneQuestion> questions_of(std::int64_t seed, std::int64_t count) const {
    return asked_scenes(room_.config, room_.recipe, seed, count);
  }

  at::Tensor sample(const fs::path& model, const generate::Request& how, std::int64_t seed,
                    const std::vector<SceneQuestion>& questions) const {
    generate::Engine engine(model, room_.device);
    generate::Request request = how;
    request.prompt = {""};
    request.width = room_.canvas().width, request.height = room_.canvas().height;
    request.frames = "1";
    generate::Job job = engine.resolve(request);
    job.items.resize(questions.size(), job.items.front());
    for (std::size_t i = 0; i < questions.size(); ++i) {
      job.items[i].prompt = {questions[i].caption};
      job.items[i].seed = {(room_.config.seed * 1000 + seed) * 1'000'000 + static_cast<std::int64_t>(i)};
    }
    return sample_pictures(room_, engine, job);
  }

  JudgeRoom room_;
  SceneReader reader_;
  at::Tensor reference_;                            // features of drawings
  std::optional<eval::FrechetReference> gaussian_;  // of them
  std::optional<RandomFeatures> random_;
};

}  // namespace

std::vector<SceneQuestion> asked_scenes(const JudgeConfig& judge, const train::Recipe& recipe,
                                        std::int64_t seed, std::int64_t count) {
  const auto key = static_cast<std::uint64_t>(judge.seed * 1000 + seed) + 0x7363656e650000ull;
  return eval::scene_questions({"training"}, key, count, data::scene_options_of(recipe.data));
}

std::unique_ptr<Judge> make_scenes_judge(const JudgeRoom& room) {
  return std::make_unique<ScenesJudge>(room);
}

}  // namespace pom::cli::experiment
