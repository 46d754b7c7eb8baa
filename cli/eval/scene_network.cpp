#include "cli/eval/scene_network.h"

#include <algorithm>
#include <cstdio>

#include <ATen/ops/cat.h>

#include "cli/command.h"
#include "cli/output_names.h"
#include "cli/terminal.h"
#include "pom/base/error.h"
#include "pom/eval/frechet.h"

namespace pom::cli {
namespace {

eval::SceneReader train_reader(const EvalOptions& options, const eval::Canvas& canvas,
                               const StopSignals& signals) {
  eval::JudgeConfig config = eval::SceneReader::usual_config();
  config.canvas = canvas;
  config.seed = static_cast<std::uint64_t>(options.judge_seed);
  config.steps = options.judge_steps.value_or(config.steps);
  Watch watch(signals, options.quiet, "training the judge", "step");
  return eval::SceneReader::train(config, [&](std::int64_t step, std::int64_t total, double loss) {
    char note[32];
    std::snprintf(note, sizeof note, "loss %.3f", loss);
    watch(step, total, note);
  });
}

eval::SceneReader find_reader(const EvalOptions& options, const eval::Canvas& canvas,
                              const StopSignals& signals) {
  const std::filesystem::path file = options.judge;
  const EvalOptions plain;
  if (std::filesystem::exists(file)) {
    if (options.judge_steps != plain.judge_steps || options.judge_seed != plain.judge_seed)
      throw UsageError(detail::concat("--judge: ", file.string(), " is trained already: --judge-steps and ",
                                      "--judge-seed are for a new file"));
    return eval::SceneReader::read(file, canvas);
  }
  eval::SceneReader reader = train_reader(options, canvas, signals);
  make_folder_of(file);
  reader.write(file);
  return reader;
}

}  // namespace

SceneNetwork::SceneNetwork(const EvalOptions& options, const eval::Canvas& canvas, const StopSignals& signals)
    : reader_(find_reader(options, canvas, signals)), rates_(eval::held_out_rates(reader_)) {
  constexpr double trusted = 0.95;
  if (rates_.everything < trusted)
    say(detail::concat("the network itself reads ", 100 * rates_.everything,
                       " % of new drawings without a mistake: more --judge-steps make a better one"));
}

std::vector<bool> SceneNetwork::compare(const at::Tensor& pictures,
                                        std::span<const eval::SceneVerdict> verdicts,
                                        std::vector<at::Tensor>& features) const {
  const eval::SceneReader::Readings readings = reader_.look(pictures);
  features.push_back(readings.features);
  std::vector<bool> alike;
  for (std::size_t i = 0; i < verdicts.size(); ++i)
    alike.push_back(eval::read_alike(verdicts[i], readings.scenes[i]));
  return alike;
}

std::optional<double> SceneNetwork::frechet(const std::vector<at::Tensor>& parts) const {
  if (parts.empty()) return {};
  const at::Tensor features = at::cat(parts);
  if (features.size(0) < 2) return {};
  const at::Tensor drawings =
      eval::drawn_for_reading(eval::DrawnFor::reference, config().seed, features.size(0), config().canvas);
  return eval::frechet_distance(eval::fit_gaussian(features),
                                eval::fit_gaussian(reader_.look(drawings).features));
}

}  // namespace pom::cli
