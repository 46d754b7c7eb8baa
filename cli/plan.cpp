// `pom plan`: what a recipe takes on GPUs that are not here.
#include "pom/train/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/common_fields.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/json.h"
#include "cli/plan_recipe.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/io/json_fields.h"
#include "pom/train/probe.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

struct PlanFlags {
  std::string recipe, gpu = "h200", measured;
  std::vector<std::string> set, link;
  std::vector<std::int64_t> gpus;
  std::int64_t per_node = 8, threads = 0;
  double images = 950e6, price = 2.5, step_ms = 0;
  bool json = false;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view what = "What to train", where = "On what", work = "For how long",
                               result = "Result";
    visit(Field{.name = "recipe", .help = "a recipe (recipes/*.toml)", .value = "RECIPE", .group = what},
          recipe);
    visit(Field{.name = "set",
                .help = "set a field of the recipe, e.g. parallel.shard=optimizer; can be repeated",
                .value = "A.B=C",
                .group = what},
          set);
    visit(Field{.name = "gpus",
                .help = "numbers of GPUs (default: 1,8)",
                .value = "N,N",
                .group = where,
                .least = 1,
                .most = 1e5},
          gpus);
    visit(Field{.name = "link",
                .help = "links within and between machines, a name or GB/s each way for each GPU: nvlink, "
                        "nvlink3, nvlink5, pcie4, pcie5, ib100 to ib800, eth10 to eth100, 50, mine=50:5 (and "
                        "microseconds of latency) (default: nvlink,ib400)",
                .value = "A,B",
                .group = where},
          link);
    visit(Field{.name = "per_node",
                .help = "GPUs of a machine",
                .value = "N",
                .group = where,
                .least = 1,
                .most = 1024},
          per_node);
    visit(Field{.name = "gpu",
                .help = "h200 (measured), h100, a100 (scaled from it), or cpu: measured now, on this machine",
                .value = "NAME",
                .group = where},
          gpu);
    visit(Field{.name = "step_ms",
                .help = "milliseconds of a step of the whole batch on one GPU, where they are known",
                .value = "X",
                .group = where,
                .least = 1e-6,
                .most = 1e9},
          step_ms);
    visit(Field{.name = "measured",
                .help = "the same from what pom train RECIPE --dry-run --json printed",
                .value = "FILE",
                .group = where},
          measured);
    visit(Field{.name = "threads",
                .help = "with --gpu cpu: threads of each process (default: the recipe's, or one per core)",
                .value = "N",
                .group = where,
                .least = 1,
                .most = 1024},
          threads);
    visit(Field{.name = "images",
                .help = "images (clips) to be seen in training; the default is the paper's number",
                .value = "X",
                .group = work,
                .least = 1,
                .most = 1e15},
          images);
    visit(Field{.name = "price",
                .help = "price of an hour of one GPU, in any currency",
                .value = "X",
                .group = work,
                .least = 0,
                .most = 1e6},
          price);
    visit(json_field(result), json);
  }
};

struct MeasuredStep {
  double seconds_per_step = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "seconds_per_step", .help = "seconds of a step"}, seconds_per_step);
  }
};

double step_seconds_of(const PlanFlags& flags) {
  if (flags.measured.empty()) return flags.step_ms / 1e3;
  if (flags.step_ms > 0) throw UsageError("--measured: cannot be combined with --step-ms");
  MeasuredStep measured;
  return as_usage([&] {
    io::read_json(io::read_json_text(flags.measured), measured, flags.measured, io::JsonOrigin::foreign);
    check(measured.seconds_per_step > 0, flags.measured,
          ": seconds_per_step: expected a number above 0, as pom train --dry-run --json prints, got ",
          measured.seconds_per_step);
    return measured.seconds_per_step;
  });
}

train::PlanOptions options_of(const PlanFlags& flags, const train::Recipe& recipe) {
  train::PlanOptions options;
  options.gpus = flags.gpus.empty() ? std::vector<std::int64_t>{1, 8} : flags.gpus;
  options.per_node = flags.per_node;
  options.images = flags.images;
  options.price = flags.price;
  options.step_seconds = step_seconds_of(flags);
  const bool cpu = flags.gpu == "cpu";
  const bool several = std::ranges::any_of(options.gpus, [](std::int64_t n) { return n > 1; });
  if (flags.link.size() > 2)
    throw UsageError(
        detail::concat("--link: expected one within a machine and one between, got ", flags.link.size()));
  if (cpu && several && flags.link.empty())
    throw UsageError(
        "--link: expected GB/s:MICROSECONDS between processes of this machine, got nothing; "
        "bench/plan.py measures them");
  if (cpu)
    options.per_node = std::max<std::int64_t>(options.per_node, *std::ranges::max_element(options.gpus));
  as_usage([&] {
    options.inside = train::link_of(flags.link.empty() ? "nvlink" : flags.link[0]);
    options.between = train::link_of(flags.link.size() < 2 ? (flags.link.empty() ? "ib400" : flags.link[0])
                                                           : flags.link[1]);
    if (!cpu) options.processor = train::processor_named(flags.gpu);
  });
  if (cpu) {
    options.processor = train::this_processor(recipe, options.step_seconds);
    options.step_seconds = 0;
  }
  return options;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

std::string milliseconds(double seconds) {
  char text[32];
  const double ms = seconds * 1e3;
  std::snprintf(text, sizeof text, "%.*f ms", ms < 10 ? 2 : ms < 100 ? 1 : 0, ms);
  return text;
}

std::string days_text(double days) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", days < 10 ? 2 : days < 100 ? 1 : 0, days);
  return text;
}

std::string plan_line(const std::vector<std::string>& cells) {
  constexpr int widths[] = {6, 12, 11, 11, 10, 15, 9, 12, 13};
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto width = static_cast<std::size_t>(widths[i]);
    const std::string& cell = cells[i];
    line += std::string(cell.size() < width ? width - cell.size() : 1, ' ') + cell;
  }
  return line;
}

JsonObject row_json(const train::Plan& plan, const train::PlanRow& row) {
  JsonObject json;
  json.add("gpus", row.gpus);
  if (!row.refusal.empty()) return json.add("refused", row.refusal);
  const train::RankMemory& m = row.memory;
  const train::CommunicationTime& c = row.communication;
  json.add("shard", train::name_of(row.shard))
      .add("memory_bytes", row.memory_bytes)
      .add("memory", JsonObject()
                         .add("weights", m.weights)
                         .add("gradients", m.gradients)
                         .add("moments", m.moments)
                         .add("average", m.average)
                         .add("aside", m.aside)
                         .add("buckets", m.buckets)
                         .add("copies", m.copies)
                         .add("activations", m.activations)
                         .add("workspaces", m.workspaces))
      .add("fits", row.fits);
  if (row.fits_with) json.add("fits_with", train::name_of(*row.fits_with));
  return json.add("parts", row.work.parts)
      .add("examples_of_a_part", row.work.examples)
      .add("exact", row.work.exact)
      .add("step_seconds", row.step())
      .add("compute", JsonObject()
                          .add("forward", row.compute.forward)
                          .add("backward", row.compute.backward)
                          .add("update", row.compute.update)
                          .add("products", row.compute.products)
                          .add("flops", row.compute.flops))
      .add("communication", JsonObject()
                                .add("bytes", c.bytes)
                                .add("gradients", c.gradients)
                                .add("weights", c.weights)
                                .add("sequence", c.sequence)
                                .add("small", c.small)
                                .add("total", c.total())
                                .add("exposed", c.exposed)
                                .add("share", c.exposed / row.step()))
      .add("images_per_second", plan.images_per_second(row))
      .add("days", plan.days(row))
      .add("gpu_hours", plan.gpu_hours(row))
      .add("cost", plan.cost(row));
}

void print_json(const train::Plan& plan) {
  std::vector<JsonObject> rows;
  for (const train::PlanRow& row : plan.rows) rows.push_back(row_json(plan, row));
  const train::Workload& work = plan.work;
  print(JsonObject()
            .add("gpu", plan.options.processor.name)
            .add("gpu_memory_bytes", plan.options.processor.memory)
            .add("links", std::vector<std::string>{plan.options.inside.name, plan.options.between.name})
            .add("parameters", work.parameters())
            .add("tokens", work.tokens())
            .add("batch", work.batch.size)
            .add("images", plan.options.images)
            .add("price", plan.options.price)
            .add("rows", rows)
            .add("assumptions", train::assumptions(plan))
            .text());
}

void print_row(const train::Plan& plan, const train::PlanRow& row) {
  if (!row.refusal.empty()) return print(plan_line({std::to_string(row.gpus)}) + "  " + row.refusal);
  const train::CommunicationTime& c = row.communication;
  print(plan_line({std::to_string(row.gpus), bytes_text(row.memory_bytes), row.fits ? "yes" : "no",
                   milliseconds(row.step()), amount_text(plan.images_per_second(row)),
                   percent(c.exposed / row.step()), days_text(plan.days(row)),
                   amount_text(plan.gpu_hours(row)), amount_text(plan.cost(row))}));
}

// What to do where memory does not suffice.
void print_advice(const train::Plan& plan) {
  for (const train::PlanRow& row : plan.rows) {
    if (!row.refusal.empty() || row.fits) continue;
    print(row.fits_with
              ? detail::concat("on ", row.gpus,
                               " GPUs it fits with --set parallel.shard=", train::name_of(*row.fits_with))
              : detail::concat("on ", row.gpus, row.gpus > 1 ? " GPUs" : " GPU",
                               " it fits with no way of dividing: a larger batch.accumulate",
                               plan.work.batch.checkpointing ? "" : " or batch.checkpointing",
                               " needs less"));
  }
}

void print_plan(const train::Plan& plan) {
  const train::Workload& work = plan.work;
  const train::PlanOptions& o = plan.options;
  const bool clips = work.network.video();
  print(detail::concat(
      amount_text(static_cast<double>(work.parameters())), " parameters, ", grouped(work.tokens()),
      clips ? " tokens a clip, " : " tokens an image, ", "batches of ", grouped(work.batch.size), ", ",
      work.precision, ", shard ", work.parallel.shard,
      work.parallel.sequence > 1 ? detail::concat(", sequence ", work.parallel.sequence) : std::string()));
  const std::string memory =
      o.processor.memory > 0 ? ", " + bytes_text(o.processor.memory) + " of memory" : std::string();
  print(detail::concat(o.processor.name, memory, "; ", o.inside.name, " within machines of ", o.per_node,
                       ", ", o.between.name, " between them"));
  print("");
  print(bold(plan_line({"GPUs", "memory", "fits", "a step", clips ? "clips/s" : "images/s", "communication",
                        "days", "GPU hours", "cost"}),
             1));
  for (const train::PlanRow& row : plan.rows) print_row(plan, row);
  print(detail::concat(
      "memory of one GPU; communication: share of a step that waits for other GPUs; days to ",
      amount_text(o.images), clips ? " clips" : " images", "; cost at ", o.price, " an hour of a GPU"));
  print_advice(plan);
  print("");
  print("Assumptions");
  for (const std::string& line : train::assumptions(plan)) print("  - " + wrap(line, 4, 4));
}

int run_plan(const PlanFlags& flags) {
  std::vector<std::string> sets = flags.set;
  if (flags.threads > 0) sets.push_back("run.threads=" + std::to_string(flags.threads));
  const train::Recipe recipe = recipe_to_plan(flags.recipe, sets);
  const train::Workload work = as_usage([&] { return train::workload_of(recipe); });
  const train::Plan plan = train::make_plan(work, options_of(flags, recipe));
  const bool none = std::ranges::all_of(plan.rows, [](const auto& row) { return !row.refusal.empty(); });
  if (none) throw UsageError(detail::concat("--gpus ", plan.rows[0].gpus, ": ", plan.rows[0].refusal));
  flags.json ? print_json(plan) : print_plan(plan);
  return Exit::ok;
}

Action declare_plan(Flags& flags) {
  const auto options = std::make_shared<PlanFlags>();
  flags.positional("recipe");
  flags.repeated("set");
  flags.add(*options);
  return [options] { return run_plan(*options); };
}

}  // namespace

Command plan_command() {
  return {
      .name = "plan",
      .summary = "memory, time and cost of training on GPUs that are not here",
      .usage = "plan RECIPE.toml [--gpus N,N] [--link A,B] [--gpu NAME] [flags]",
      .about =
          "Counts what a recipe takes on so many GPUs: memory of each, the time of a step and the share of "
          "it "
          "that waits for other GPUs, days and cost until so many images were seen. Nothing is trained, and "
          "data need not be there. Rates of products and memory were measured on an H200, speeds of links "
          "are "
          "stated; everything that was assumed is printed below the table.\n"
          "\n"
          "--gpu cpu measures a small network on this machine first; a step that was measured elsewhere "
          "(--step-ms, --measured) takes the place of the model, and only what ranks exchange is added.",
      .examples =
          "pom plan recipes/imagenet-xl2.toml --gpus 8,64,256 --link nvlink,ib400\n"
          "pom plan recipes/imagenet-xl2.toml --gpus 512 --set batch.size=1024\n"
          "pom plan recipes/webvid-xl2.toml --gpus 64 --images 32e6 --price 3 --json\n"
          "pom plan recipes/shapes-tiny.toml --gpu cpu --gpus 1,2 --link 2:100",
      .declare = declare_plan,
  };
}

}  // namespace pom::cli
