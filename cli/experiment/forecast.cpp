#include "cli/experiment/forecast.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/command.h"
#include "cli/experiment/table.h"
#include "cli/json.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/train/plan.h"

namespace pom::cli::experiment {
namespace {

struct ArmCost {
  std::string name;
  double parameters = 0, macs = 0, steps = 0, examples = 0;
  double step_seconds = 0;  // on an H200, by the model
};

double h200_step(const train::Recipe& recipe) {
  train::PlanOptions options;
  options.gpus = {1};
  options.inside = train::link_of("nvlink"), options.between = train::link_of("ib400");
  options.processor = train::processor_named("h200");
  return train::make_plan(train::workload_of(recipe), options).rows.front().step();
}

double total_of(const std::vector<ArmCost>& costs, const Arm& arm) {
  double total = 0;
  for (const ArmCost& cost : costs)
    if (std::ranges::find(arm.equal_to, cost.name) != arm.equal_to.end())
      total += cost.steps * (arm.equal == "flops" ? cost.macs : cost.step_seconds);
  return total;
}

std::vector<ArmCost> costs_of(const Plan& plan) {
  std::vector<ArmCost> costs;
  for (const Arm& arm : plan.arms) {
    const train::Recipe recipe = recipe_of(plan, arm, plan.file().seeds.front());
    ArmCost cost{.name = arm.name,
                 .parameters = static_cast<double>(parameters_of(recipe)),
                 .macs = macs_of(recipe),
                 .steps = arm.trains() ? static_cast<double>(recipe.run.steps) : 0,
                 .step_seconds = h200_step(recipe)};
    if (!arm.equal.empty())  // the same batch in all of them
      cost.steps = std::round(total_of(costs, arm) / (arm.equal == "flops" ? cost.macs : cost.step_seconds));
    cost.examples = cost.steps * static_cast<double>(recipe.batch.size);
    costs.push_back(cost);
  }
  return costs;
}

struct Total {
  double examples = 0, seconds = 0;
  std::int64_t trainings = 0, samples = 0;
};

Total total_of(const Plan& plan, const std::vector<ArmCost>& costs) {
  const File& file = plan.file();
  Total total{.trainings = plan.trainings() + plan.sweep_trainings(),
              .samples = std::ssize(plan.rows) * std::ssize(file.seeds) * file.judge.count +
                         plan.sweep_trainings() * file.judge.count};
  const auto seeds = static_cast<double>(file.seeds.size());
  const double tries = static_cast<double>(file.sweep.values.size() * file.sweep.seeds.size());
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const ArmCost& cost = costs[i];
    total.examples += seeds * cost.examples, total.seconds += seeds * cost.steps * cost.step_seconds;
    if (file.sweep.field.empty() || !plan.arms[i].sweep.empty() || !plan.arms[i].trains()) continue;
    const double steps = file.sweep.steps > 0 ? static_cast<double>(file.sweep.steps) : cost.steps;
    total.examples += tries * steps / cost.steps * cost.examples;
    total.seconds += tries * steps * cost.step_seconds;
  }
  return total;
}

}  // namespace

std::string forecast_text(const Plan& plan) {
  if (plan.file().timed())
    return detail::concat("times ", plan.points.size(), " rows, ", plan.file().seeds.size(), " times each");
  const Total total = total_of(plan, costs_of(plan));
  return detail::concat(total.trainings, " trainings, ", amount_text(total.examples),
                        " examples, by the model of pom plan about ", std::ceil(total.seconds / 6) / 10,
                        " minutes of an H200; ", grouped(total.samples), " samples");
}

int print_forecast(const Plan& plan, bool json) {
  if (plan.file().timed()) return print(forecast_text(plan)), Exit::ok;
  const std::vector<ArmCost> costs = costs_of(plan);
  const Total total = total_of(plan, costs);
  if (json) {
    std::vector<JsonObject> arms;
    for (const ArmCost& cost : costs)
      arms.push_back(JsonObject()
                         .add("name", cost.name)
                         .add("parameters", cost.parameters)
                         .add("macs", cost.macs)
                         .add("steps", cost.steps)
                         .add("examples", cost.examples)
                         .add("h200_seconds", cost.steps * cost.step_seconds));
    print(JsonObject()
              .add("experiment", plan.experiment.name)
              .add("arms", arms)
              .add("seeds", plan.file().seeds)
              .add("trainings", total.trainings)
              .add("examples", total.examples)
              .add("samples", total.samples)
              .add("h200_seconds", total.seconds)
              .text());
    return Exit::ok;
  }
  MarkdownTable table({"arm", "parameters", "MACs", "steps", "examples", "H200, s"});
  for (const ArmCost& cost : costs)
    table.add({cost.name, amount_text(cost.parameters), amount_text(cost.macs),
               std::to_string(static_cast<std::int64_t>(cost.steps)), amount_text(cost.examples),
               std::to_string(static_cast<std::int64_t>(std::ceil(cost.steps * cost.step_seconds)))});
  print(table.text());
  print(forecast_text(plan));
  return Exit::ok;
}

}  // namespace pom::cli::experiment
