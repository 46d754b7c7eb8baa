// What an arm is trained with, once its sweep is done and step times are known.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/experiment/runner.h"
#include "pom/base/error.h"
#include "pom/train/trainer.h"

namespace pom::cli::experiment {
namespace {

// What a step of a training costs: multiply-adds, or seconds on this machine.
std::optional<double> step_cost(const Folder& folder, const Arm& arm, const train::Recipe& recipe,
                                const std::string& kind, const std::string& device, bool measure) {
  if (kind == "flops") return macs_of(recipe) * static_cast<double>(recipe.batch.size);
  if (const std::optional<double> known = folder.step_seconds(arm.name)) return known;
  if (!measure) return std::nullopt;
  train::Recipe here = recipe;
  if (!device.empty()) here.run.device = device;
  const train::TrainForecast measured = train::forecast(here);
  check(measured.fits && measured.seconds_per_step > 0, arm.name,
        ": seconds of a step: expected a training that fits into memory, got one of ", measured.memory_bytes,
        " bytes where ", measured.free_bytes, " are free");
  folder.write_step_seconds(arm.name, measured.seconds_per_step);
  return measured.seconds_per_step;
}

}  // namespace

std::vector<std::string> with_steps(const train::Recipe& recipe, std::int64_t steps) {
  const double ratio = static_cast<double>(steps) / static_cast<double>(recipe.run.steps);
  const auto scaled = [&](std::int64_t count) {
    return std::to_string(static_cast<std::int64_t>(std::floor(ratio * static_cast<double>(count))));
  };
  return {"run.steps=" + std::to_string(steps), "optimizer.warmup=" + scaled(recipe.optimizer.warmup),
          "optimizer.cooldown=" + scaled(recipe.optimizer.cooldown)};
}

std::optional<std::string> swept_value(const Plan& plan, const Folder& folder, const Arm& arm) {
  const SweepConfig& sweep = plan.file().sweep;
  if (sweep.field.empty()) return std::nullopt;
  const std::string& who = arm.sweep.empty() ? arm.name : arm.sweep;
  constexpr double worst = std::numeric_limits<double>::infinity();
  const double sign = metric_named(metrics_of(plan.file().judge.kind), sweep.metric).higher ? -1 : 1;
  std::optional<std::string> best;
  double least = worst;
  for (const std::string& value : sweep.values) {
    double sum = 0;
    for (const std::int64_t seed : sweep.seeds) {
      const auto scores = Folder::judged(folder.sweep_run(who, value, seed), "sweep");
      if (!scores) return std::nullopt;
      const double score = score_named(*scores, sweep.metric);
      sum += std::isfinite(score) ? sign * score : worst;
    }
    if (sum < least || !best) least = sum, best = value;
  }
  return best;
}

std::optional<train::Recipe> final_recipe(const Plan& plan, const Folder& folder, const Arm& arm,
                                          std::int64_t seed, const std::string& device, bool measure) {
  std::vector<std::string> more;
  if (!plan.file().sweep.field.empty()) {
    const std::optional<std::string> value = swept_value(plan, folder, arm);
    if (!value) return std::nullopt;
    more.push_back(plan.file().sweep.field + "=" + *value);
  }
  const train::Recipe recipe = recipe_of(plan, arm, seed, more);
  if (arm.equal.empty()) return recipe;
  const auto own = step_cost(folder, arm, recipe, arm.equal, device, measure);
  if (!own) return std::nullopt;
  double total = 0;
  for (const std::string& name : arm.equal_to) {
    const Arm& other = plan.arms[plan.arm_named(name)];
    const auto theirs = final_recipe(plan, folder, other, seed, device, measure);
    if (!theirs) return std::nullopt;
    const auto cost = step_cost(folder, other, *theirs, arm.equal, device, measure);
    if (!cost) return std::nullopt;
    total += *cost * static_cast<double>(theirs->run.steps);
  }
  const auto steps = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::llround(total / *own)));
  for (const std::string& assignment : with_steps(recipe, steps)) more.push_back(assignment);
  return recipe_of(plan, arm, seed, more);
}

}  // namespace pom::cli::experiment
