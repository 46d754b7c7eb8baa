// Who looks at samples, the same for all arms: a judge made once in the experiment's folder, questions and
// noise that depend on its seed and on that of the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/experiment/doses.h"
#include "cli/experiment/file.h"
#include "cli/experiment/metrics.h"
#include "cli/signals.h"
#include "pom/eval/drawings.h"
#include "pom/eval/frechet.h"
#include "pom/eval/inception.h"
#include "pom/eval/judge.h"
#include "pom/eval/scenes_eval.h"
#include "pom/generate/engine.h"
#include "pom/train/recipe.h"

namespace pom::cli::experiment {

// Where and how it works.
struct JudgeRoom {
  JudgeConfig config;
  train::Recipe recipe;  // of the arms: the size of pictures, the frames of clips
  std::filesystem::path folder;
  const StopSignals& signals;
  std::string device = "auto";
  std::int64_t batch = 0;  // 0: the engine chooses
  bool quiet = false;

  eval::Canvas canvas() const { return {recipe.sample.size.at(0), recipe.sample.size.at(1)}; }
};

// What a judge looks at.
struct Samples {
  std::int64_t seed = 0;  // of their questions
  at::Tensor pictures;    // (N, 3, H, W), or clips (N, 3, F, H, W), uint8
  at::Tensor early;       // by Inception, where it is asked for: (N, 192)
};

// Samples are made where the models run. Whoever looks at them needs nothing but the CPU, and may be another
// thread: so the next training need not wait.
class Judge {
 public:
  virtual ~Judge() = default;

  // Of a model, made as `how` says. Runs of the same seed get the same questions and noise. The first
  // pictures go on `sheet`, where it has a name. Throws generate::Stopped where a signal asked.
  virtual Samples samples(const std::filesystem::path& model, const generate::Request& how, std::int64_t seed,
                          const std::filesystem::path& sheet) = 0;
  // Drawings in place of samples: the best that can be had; or drawings that are spoilt.
  virtual Samples drawings(const Dose* dose = nullptr) = 0;
  virtual Scores scores(const Samples& samples) const = 0;
};

// The file of a judge in the room's folder, and the one to read: that, or one that has learnt elsewhere, of
// which the folder gets a copy; empty where the judge has yet to learn.
struct JudgeFiles {
  std::filesystem::path own, learnt;
};
JudgeFiles judge_files(const JudgeRoom& room);

// Learns where its file is not in the folder yet.
std::unique_ptr<Judge> make_judge(const JudgeRoom& room);
std::unique_ptr<Judge> make_shapes_judge(const JudgeRoom& room);
std::unique_ptr<Judge> make_scenes_judge(const JudgeRoom& room);
std::unique_ptr<Judge> make_sprites_judge(const JudgeRoom& room);

// What the judge of scenes asks in the run of a seed: scenes of as many objects as the recipe trains with.
std::vector<eval::SceneQuestion> asked_scenes(const JudgeConfig& judge, const train::Recipe& recipe,
                                              std::int64_t seed, std::int64_t count);

// In place of a judge, for what is timed: the scores of one point, in one repetition.
Scores time_figure1(const std::vector<std::string>& sets, const std::string& device,
                    const StopSignals& signals);
Scores time_streaming(const std::vector<std::string>& sets);

// What judges of pictures share: samples (N, 3, H, W) of the room's size, and a sheet of some of them.
at::Tensor sample_pictures(const JudgeRoom& room, generate::Engine& engine, const generate::Job& job);
void write_picture_sheet(const at::Tensor& pictures, std::int64_t columns, const std::filesystem::path& path);

// The Fréchet distance of features to those of the reference: without the bias of few samples by halves
// ("frechet"), at infinitely many ("frechet_infinity", of at least 20) and as it is ("frechet_n"). Rows of
// all kinds must be mixed.
Scores frechet_scores(const at::Tensor& features, const eval::FrechetReference& reference);

// A second opinion that knows nothing: features of a network whose weights are as they were drawn, only its
// norms have seen drawings. Distances are without the bias of few samples.
class RandomFeatures {
 public:
  RandomFeatures(const JudgeRoom& room, const at::Tensor& reference);  // pictures (N, 3, H, W)
  // The 192 channels behind the second pool of Inception-v3, whose weights are drawn too, where they are
  // asked for; on the room's device.
  at::Tensor early(const at::Tensor& pictures) const;
  // "frechet_random"; and "frechet_inception" by those channels.
  Scores scores(const Samples& samples) const;

 private:
  eval::Judge network_;
  std::optional<eval::Inception> inception_;
  eval::FrechetReference reference_;
  std::optional<eval::FrechetReference> early_reference_;
};

}  // namespace pom::cli::experiment
