#include "cli/experiment/judge.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "cli/eval/eval.h"
#include "cli/output_names.h"
#include "pom/base/error.h"
#include "pom/eval/inception_input.h"
#include "pom/eval/sample_bias.h"
#include "pom/eval/shapes_eval.h"
#include "pom/generate/device.h"
#include "pom/io/picture.h"
#include "pom/io/sheet.h"

namespace pom::cli::experiment {

at::Tensor sample_pictures(const JudgeRoom& room, generate::Engine& engine, const generate::Job& job) {
  const eval::Canvas canvas = room.canvas();
  at::Tensor pictures = at::zeros({std::ssize(job.items), 3, canvas.height, canvas.width}, at::kByte);
  Watch watch(room.signals, room.quiet, "sampling", "evaluation");
  generate::Observer observer;
  observer.stop = &room.signals.asked();
  observer.on_evaluation = [&](std::int64_t done, std::int64_t total) { watch(done, total); };
  observer.on_frames = [&](generate::Frames&& frames) {
    pictures[frames.item].copy_(eval::stack_pictures(frames.images)[0]);
  };
  engine.run(job, {.batch = room.batch}, observer);
  return pictures;
}

void write_picture_sheet(const at::Tensor& pictures, std::int64_t columns,
                         const std::filesystem::path& path) {
  io::SheetOptions options;
  options.columns = static_cast<int>(columns);
  make_folder_of(path);
  io::write_picture(path, io::make_sheet(eval::unstack_pictures(pictures), options), {});
}

Scores frechet_scores(const at::Tensor& features, const eval::FrechetReference& reference) {
  const eval::SampledDistance distance =
      eval::sampled_distance(features, [&](const at::Tensor& some) { return reference.to(some); });
  Scores scores = {{"frechet", distance.unbiased.value()}, {"frechet_n", distance.all}};
  if (distance.infinity) scores.emplace_back("frechet_infinity", *distance.infinity);
  return scores;
}

namespace {

eval::Judge untrained(const JudgeRoom& room) {
  eval::JudgeConfig config;
  config.canvas = room.canvas();
  config.seed = static_cast<std::uint64_t>(room.config.seed) + 0x72616e646f6d;
  config.steps = std::min<std::int64_t>(40, room.config.steps);  // for the norms
  config.lr = 0;
  return eval::Judge::train(config);
}

}  // namespace

RandomFeatures::RandomFeatures(const JudgeRoom& room, const at::Tensor& reference)
    : network_(untrained(room)), reference_(eval::fit_gaussian(network_.look(reference).features)) {
  if (!room.config.inception) return;
  inception_.emplace(eval::drawn_inception_weights(), at::kFloat,
                     generate::device_named(room.device, "experiment"));
  early_reference_.emplace(eval::fit_gaussian(early(reference)));
}

at::Tensor RandomFeatures::early(const at::Tensor& pictures) const {
  if (!inception_) return {};
  constexpr std::int64_t some = 64;
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> all;
  for (const at::Tensor& part : pictures.split(some)) {
    const at::Tensor input =
        eval::inception_input(part.to(inception_->device()), eval::InputRule::torch, inception_->dtype());
    all.push_back(inception_->forward(input, {.early = true, .pool3 = false}).pool192.to(at::kCPU));
  }
  return at::cat(all);
}

Scores RandomFeatures::scores(const Samples& samples) const {
  const auto distance = [](const at::Tensor& features, const eval::FrechetReference& reference) {
    return eval::unbiased_distance(features, [&](const at::Tensor& some) { return reference.to(some); });
  };
  Scores scores = {{"frechet_random", distance(network_.look(samples.pictures).features, reference_)}};
  if (inception_) scores.emplace_back("frechet_inception", distance(samples.early, *early_reference_));
  return scores;
}

JudgeFiles judge_files(const JudgeRoom& room) {
  namespace fs = std::filesystem;
  const fs::path own = room.folder / detail::concat("judge-", room.config.seed, ".safetensors");
  if (fs::exists(own)) return {own, own};
  if (room.config.file.empty()) return {own, {}};
  const fs::path named = room.config.file, beside = experiments_folder().parent_path().parent_path() / named;
  const fs::path& found = fs::exists(named) ? named : beside;
  check(fs::is_regular_file(found), "judge.file: expected the file of a judge that has learnt, got ",
        named.string(), fs::exists(found) ? ", which is no file" : ", which is not there");
  return {own, found};
}

std::unique_ptr<Judge> make_judge(const JudgeRoom& room) {
  std::filesystem::create_directories(room.folder);
  if (room.config.kind == "shapes") return make_shapes_judge(room);
  if (room.config.kind == "sprites") return make_sprites_judge(room);
  return make_scenes_judge(room);
}

}  // namespace pom::cli::experiment
