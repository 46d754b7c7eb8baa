// Reads what an experiment has left so far.
#include <algorithm>
#include <cstdlib>

#include "cli/experiment/analysis.h"
#include "cli/experiment/doses.h"
#include "cli/experiment/runner.h"

namespace pom::cli::experiment {
namespace {

// Those asked for, or all; without what the judge does not measure.
std::vector<Metric> columns_of(const File& file) {
  const std::vector<Metric> all = metrics_of(file.judge.kind);
  std::vector<Metric> some;
  for (const std::string& name : file.judge.metrics) some.push_back(metric_named(all, name));
  if (some.empty()) some = all;
  if (!file.judge.inception)
    std::erase_if(some, [](const Metric& m) { return m.name == "frechet_inception"; });
  return some;
}

RowResult describe_row(const Plan& plan, const Folder& folder, const Row& row) {
  RowResult result{.name = row.name};
  const std::string& axis = plan.file().axis;
  const double number = std::atof(plan.points[row.point].name.c_str()),
               place = static_cast<double>(&row - plan.rows.data());
  result.x = axis == "point" ? number : place;
  if (plan.file().timed()) return result;
  const Arm& arm = plan.arms[row.arm];
  const Arm& trained = arm.trains() ? arm : plan.arms[plan.arm_named(arm.model)];
  const std::int64_t seed = plan.file().seeds.front();
  const train::Recipe plain = recipe_of(plan, trained, seed);
  result.parameters = static_cast<double>(parameters_of(plain));
  result.macs = macs_of(plain);
  const auto recipe = final_recipe(plan, folder, trained, seed, "", false);
  if (recipe) result.steps = recipe->run.steps;
  if (axis == "macs") result.x = result.macs;
  return result;
}

}  // namespace

std::map<std::int64_t, double> RowResult::values(const std::string& metric) const {
  std::map<std::int64_t, double> found;
  for (const auto& [seed, scores] : runs)
    if (const double value = score_named(scores, metric); value == value) found[seed] = value;
  return found;
}

std::optional<eval::MeanInterval> RowResult::mean(const std::string& metric) const {
  std::vector<double> all;
  for (const auto& [seed, value] : values(metric)) all.push_back(value);
  if (all.empty()) return std::nullopt;
  return eval::t_interval(all);
}

Results collect(const Plan& plan, const Folder& folder) {
  Results results;
  results.metrics = columns_of(plan.file());
  results.floor = folder.floor().value_or(Scores());
  if (plan.file().judge.doses)
    for (const Dose& dose : doses())
      if (const auto scores = folder.dose(dose.name)) results.doses.emplace_back(dose.name, *scores);
  results.device = folder.device().value_or("");
  for (const Row& row : plan.rows) {
    RowResult& result = results.rows.emplace_back(describe_row(plan, folder, row));
    for (const std::int64_t seed : plan.file().seeds) {
      ++results.all;
      const auto scores =
          Folder::judged(folder.run(plan.arms[row.arm].name, seed), plan.points[row.point].name);
      if (!scores) continue;
      ++results.done;
      result.runs[seed] = *scores;
    }
  }
  for (const Arm& arm : plan.arms)
    if (const auto value = swept_value(plan, folder, arm)) results.swept[arm.name] = *value;
  analyse(plan, results);
  return results;
}

}  // namespace pom::cli::experiment
