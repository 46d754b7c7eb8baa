// `pom experiment`: a figure or table of the paper, from trainings to the table.
#include "cli/command.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/common_fields.h"
#include "cli/experiment/forecast.h"
#include "cli/experiment/plot.h"
#include "cli/experiment/runner.h"
#include "cli/experiment/table.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/json.h"
#include "cli/processor.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/generate/device.h"
#include "pom/io/atomic_file.h"
#include "pom/io/folder_lock.h"
#include "pom/train/refusal.h"

namespace pom::cli {
namespace experiment {
namespace {

namespace fs = std::filesystem;

struct ExperimentFlags {
  std::string name, output, only, device = "auto";
  std::vector<std::string> set;
  std::int64_t threads = 0, batch = 0, jobs = 1;
  double minutes = 0;
  bool quick = false, resume = false, lean = false, list = false, dry_run = false, json = false,
       quiet = false;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view what = "What to do", where = "Where it goes", work = "How to work";
    visit(Field{.name = "name",
                .help = "an experiment of recipes/experiments, or a file of that kind",
                .value = "NAME",
                .group = what},
          name);
    visit(Field{.name = "list", .help = "list all experiments, with what the paper claims", .group = what},
          list);
    visit(Field{.name = "quick",
                .help = "a small one that ends in minutes on two cores: every part works, nothing is shown",
                .group = what},
          quick);
    visit(
        Field{.name = "set",
              .help =
                  "set a field of the experiment, e.g. seeds=[1,2] or recipe.run.steps=500; can be repeated",
              .value = "A.B=C",
              .group = what},
        set);
    visit(Field{.name = "dry_run", .help = "only print arms, sizes and what it takes", .group = what},
          dry_run);
    visit(Field{.name = "output",
                .help = "folder of the results (default: out/experiments/NAME)",
                .value = "DIR",
                .group = where},
          output);
    visit(json_field(where), json);
    visit(quiet_field(where), quiet);
    visit(Field{.name = "resume", .help = "do what is still missing in the folder", .group = work}, resume);
    visit(Field{.name = "minutes",
                .help = "stop after X minutes, at a checkpoint; continue with --resume",
                .value = "X",
                .group = work,
                .least = 0.001,
                .most = 1e6},
          minutes);
    visit(Field{.name = "jobs",
                .help = "trainings at the same time, each a process of its own",
                .value = "N",
                .group = work,
                .least = 1,
                .most = 64},
          jobs);
    visit(Field{.name = "only",
                .help = "train one run of an experiment that has begun, e.g. 2x6/seed-3, and nothing else",
                .value = "ARM/seed-S",
                .group = work},
          only);
    visit(Field{.name = "lean", .help = "remove models once they are judged", .group = work}, lean);
    visit(generate::device_field(work), device);
    visit(Field{.name = "batch",
                .help = "samples at a time (default: what memory and speed suggest)",
                .value = "N",
                .group = work,
                .least = 1,
                .most = 65536},
          batch);
    visit(threads_field(work), threads);
  }
};

fs::path folder_of(const ExperimentFlags& flags, const Experiment& experiment) {
  if (!flags.output.empty()) return flags.output;
  return fs::path("out") / "experiments" / (experiment.name + (experiment.quick ? "-quick" : ""));
}

std::string command_line(const ExperimentFlags& flags) {
  std::string line = "pom experiment " + flags.name;
  if (flags.quick) line += " --quick";
  for (const std::string& text : flags.set) line += " --set " + text;
  return line;
}

// This experiment once more, for one run of it: what --jobs starts.
std::vector<std::string> words_again(const ExperimentFlags& flags, const fs::path& folder,
                                     std::int64_t threads) {
  std::vector<std::string> words = this_program();
  words.insert(words.end(),
               {"experiment", flags.name, "-q", "-o", folder.string(), "--device", flags.device});
  if (flags.quick) words.push_back("--quick");
  for (const std::string& text : flags.set) words.insert(words.end(), {"--set", text});
  if (threads > 0) words.insert(words.end(), {"--threads", std::to_string(threads)});
  return words;
}

int list_all() {
  for (const std::string& name : experiment_names()) {
    const Experiment experiment = as_usage([&] { return read_experiment(name, false, {}); });
    const std::string cost = forecast_text(as_usage([&] { return make_plan(experiment); }));
    print(bold(name, 1) + "  " + cost);
    print("  " + wrap(experiment.file.claim, 2, 2, 100));
  }
  return Exit::ok;
}

void write_results(const Plan& plan, const Folder& folder, const Results& results) {
  io::write_file_atomically(folder.path() / "results.json", results_json(plan, results) + "\n");
  io::write_file_atomically(folder.path() / "plot.svg", results_svg(plan, results));
  io::write_file_atomically(folder.path() / "table.md", table_text(plan, results));
}

// As it is resolved. A stream is timed on the CPU alone.
std::string device_of(const Plan& plan, const std::string& device) {
  const bool streaming = plan.file().judge.kind == "streaming";
  check(!streaming || device == "auto" || device == "cpu",
        "--device: expected cpu where a stream is timed, got ", device);
  return generate::device_named(streaming ? "cpu" : device, "experiment").str();
}

// The folder belongs to whoever has begun the experiment, the run to this process.
int run_only(const ExperimentFlags& flags, const Plan& plan, const Folder& folder,
             const RunOptions& options) {
  if (!fs::exists(folder.path() / "experiment.toml"))
    throw UsageError(detail::concat("--only: expected the folder of an experiment that has begun, got ",
                                    folder.path().string()));
  folder.begin(plan.experiment, true);
  const StopSignals signals;
  const Outcome outcome = Runner(plan, folder, options, signals).train_only(flags.only);
  return outcome == Outcome::stopped ? signals.exit_code() : Exit::ok;
}

int run_training(const ExperimentFlags& flags, const Experiment& experiment) {
  const Plan plan = as_usage([&] { return make_plan(experiment); });
  if (flags.dry_run) return print_forecast(plan, flags.json);
  const std::string device = as_usage([&] { return device_of(plan, flags.device); });
  // Networks of a quick run are so small that a second thread would only wait.
  const std::int64_t threads = flags.quick && flags.threads == 0 ? 1 : flags.threads;
  set_threads(threads);
  const Folder folder(folder_of(flags, experiment));
  const RunOptions options{
      .device = flags.device,
      .threads = threads,
      .batch = flags.batch,
      .minutes = flags.minutes,
      .lean = flags.lean,
      .quiet = flags.quiet,
      .command = command_line(flags),
      .jobs = flags.jobs,
      .again = flags.jobs > 1 ? words_again(flags, folder.path(), threads) : std::vector<std::string>()};
  if (!flags.only.empty()) return run_only(flags, plan, folder, options);
  fs::create_directories(folder.path());
  const io::FolderLock lock(folder.path());
  folder.begin(experiment, flags.resume);
  if (plan.keeps_to_one_device()) folder.keep_to(device);
  const StopSignals signals;
  const Outcome outcome = Runner(plan, folder, options, signals).run();
  const Results results = collect(plan, folder);
  write_results(plan, folder, results);
  std::string text = table_text(plan, results);
  text.pop_back();
  if (outcome != Outcome::stopped) print(flags.json ? results_json(plan, results) : text);
  if (outcome == Outcome::complete) {
    if (!flags.quiet) say((folder.path() / "table.md").string() + ", plot.svg, results.json");
    return Exit::ok;
  }
  say(detail::concat(outcome == Outcome::stopped ? "stopped" : "time is up", " with ", results.done, " of ",
                     results.all, " judged; use --resume to continue"));
  return outcome == Outcome::stopped ? signals.exit_code() : Exit::ok;
}

int run(const ExperimentFlags& flags) {
  if (flags.list) return list_all();
  if (flags.name.empty())
    throw UsageError("expected the name of an experiment, got nothing: pom experiment --list names them");
  const Experiment experiment = as_usage([&] { return read_experiment(flags.name, flags.quick, flags.set); });
  return run_training(flags, experiment);
}

Action declare(Flags& flags) {
  const auto options = std::make_shared<ExperimentFlags>();
  flags.positional("name");
  flags.repeated("set");
  flags.letter("output", 'o');
  flags.letter("quiet", 'q');
  flags.add(*options);
  return [options] { return run(*options); };
}

}  // namespace
}  // namespace experiment

Command experiment_command() {
  return {
      .name = "experiment",
      .summary = "repeat a figure or table of the paper, from training to table",
      .usage = "experiment NAME [--quick] [--resume] [-o DIR] [flags]",
      .about =
          "Trains every arm of an experiment with every seed, samples each with the same noise, lets one "
          "judge "
          "look at all of them, and writes table.md, plot.svg and results.json: every run, means with "
          "intervals, the tests that its file stated beforehand and their outcome, beside what the paper "
          "says.\n"
          "\n"
          "It can be stopped at any point, by Ctrl-C, kill -9 or --minutes; --resume does what is missing, "
          "and "
          "the table is the same. Files of experiments are in recipes/experiments.",
      .examples =
          "pom experiment --list\n"
          "pom experiment degrees --dry-run\n"
          "pom experiment degrees --quick -o out/degrees\n"
          "pom experiment degrees --quick -o out/degrees --resume",
      .declare = experiment::declare,
  };
}

}  // namespace pom::cli
