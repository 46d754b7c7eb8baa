// `pom train`: a recipe in, a run's folder out.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/common_fields.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/processor.h"
#include "cli/ranks_launch.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/generate/device.h"
#include "pom/parallel/ranks.h"
#include "pom/train/trainer.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

struct TrainFlags {
  std::string recipe, output, init_from, from, device;
  std::vector<std::string> set;
  std::int64_t cooldown = 0, threads = 0, gpus = 0;
  double minutes = 0;
  bool resume = false, dry_run = false, json = false, quiet = false;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view what = "What to train", where = "Where it goes", work = "How to work";
    visit(Field{.name = "recipe",
                .help = "a recipe (recipes/*.toml), or with --resume the folder of a run",
                .value = "RECIPE",
                .group = what},
          recipe);
    visit(Field{.name = "set",
                .help = "set a field of the recipe, e.g. optimizer.lr=2e-4; can be repeated",
                .value = "A.B=C",
                .group = what},
          set);
    visit(Field{.name = "init_from",
                .help = "start from the weights of a model, which may be of another image size",
                .value = "DIR",
                .group = what},
          init_from);
    visit(Field{.name = "output",
                .help = "folder of the run (default: out/runs/NAME)",
                .value = "DIR",
                .group = where},
          output);
    visit(json_field(where), json);
    visit(Field{.name = "quiet", .help = "no progress, no notes; log.txt has them", .group = where}, quiet);
    visit(Field{.name = "resume",
                .help = "continue from the newest intact checkpoint in the folder",
                .group = work},
          resume);
    visit(Field{.name = "from",
                .help = "continue from this checkpoint, of any run, in a new folder (-o)",
                .value = "FILE",
                .group = work},
          from);
    visit(Field{.name = "cooldown",
                .help = "decay the learning rate to zero over the next N steps, then stop",
                .value = "N",
                .group = work,
                .least = 1,
                .most = 1e9},
          cooldown);
    visit(Field{.name = "minutes",
                .help = "save and stop after X minutes; continue with --resume",
                .value = "X",
                .group = work,
                .least = 0.001,
                .most = 1e6},
          minutes);
    visit(Field{.name = "dry_run", .help = "only forecast memory and time, from a few steps", .group = work},
          dry_run);
    visit(generate::device_field(work), device);
    visit(
        Field{.name = "gpus",
              .help = "train on N GPUs of this machine (on several machines: torchrun -m libpom train); with "
                      "--dry-run the memory of one of N, and what one computes",
              .value = "N",
              .group = work,
              .least = 1,
              .most = 4096},
        gpus);
    visit(Field{.name = "threads",
                .help = "CPU threads (default: the recipe's, or one per core)",
                .value = "N",
                .group = work,
                .least = 1,
                .most = 1024},
          threads);
  }
};

train::Recipe recipe_of(const TrainFlags& flags) {
  if (flags.recipe.empty()) throw UsageError("expected a recipe, such as recipes/shapes.toml, got nothing");
  fs::path path = flags.recipe;
  if (fs::is_directory(path)) {
    if (!flags.resume)
      throw UsageError(flags.recipe + " is a folder: expected a recipe, or a run's folder with --resume");
    path /= "recipe.toml";
  }
  std::vector<std::string> sets = flags.set;
  if (!flags.device.empty()) sets.push_back("run.device=" + flags.device);
  if (flags.threads > 0) sets.push_back("run.threads=" + std::to_string(flags.threads));
  return as_usage([&] {
    const train::Recipe recipe = train::read_recipe(path, sets);
    generate::device_named(recipe.run.device, "train: run");
    return recipe;
  });
}

fs::path folder_of(const TrainFlags& flags, const train::Recipe& recipe) {
  if (!flags.output.empty()) return flags.output;
  if (fs::is_directory(flags.recipe)) return flags.recipe;
  return fs::path("out") / "runs" / recipe.run.name;
}

// As it was given, for run.json, and for processes that do the same.
std::vector<std::string> words_of(const TrainFlags& flags) {
  std::vector<std::string> words = {"train", flags.recipe};
  const auto add = [&](const char* flag, const std::string& value) {
    words.emplace_back(flag);
    words.push_back(value);
  };
  for (const std::string& text : flags.set) add("--set", text);
  if (!flags.output.empty()) add("-o", flags.output);
  if (flags.resume) words.emplace_back("--resume");
  if (!flags.from.empty()) add("--from", flags.from);
  if (!flags.init_from.empty()) add("--init-from", flags.init_from);
  if (flags.cooldown > 0) add("--cooldown", std::to_string(flags.cooldown));
  if (!flags.device.empty()) add("--device", flags.device);
  return words;
}

std::string command_line(const TrainFlags& flags) {
  std::string line = "pom";
  for (const std::string& word : words_of(flags)) line += " " + word;
  return line;
}

// What a person asked wrongly is an error of usage, wherever it is found.
template <class Work>
auto or_usage(Work&& work) {
  try {
    return work();
  } catch (const train::Refusal& refusal) {
    throw UsageError(refusal.what());
  }
}

int print_forecast(const TrainFlags& flags, const train::Recipe& recipe) {
  const train::TrainForecast f =
      or_usage([&] { return train::forecast(recipe, std::max<std::int64_t>(1, flags.gpus)); });
  const double seconds = f.seconds_per_step * static_cast<double>(f.steps);
  if (flags.json) {
    print(JsonObject()
              .add("device", f.device)
              .add("parameters", f.parameters)
              .add("steps", f.steps)
              .add("seconds_per_step", f.seconds_per_step)
              .add("pictures_per_second", f.pictures_per_second)
              .add("loader_pictures_per_second", f.loader_pictures_per_second)
              .add("seconds", seconds)
              .add("gpus", std::max<std::int64_t>(1, flags.gpus))
              .add("memory_bytes", f.memory_bytes)
              .add("free_bytes", f.free_bytes)
              .add("fits", f.fits)
              .add("checkpoint_bytes", f.checkpoint_bytes)
              .text());
    return f.fits ? Exit::ok : Exit::failed;
  }
  print(detail::concat("device      ", f.device, ", ", recipe.run.precision));
  print("network     " + amount_text(static_cast<double>(f.parameters)) + " parameters");
  if (f.fits) {
    print(detail::concat("a step      ", seconds_text(f.seconds_per_step), ", ", recipe.batch.size,
                         recipe.data.moving() && recipe.data.frames > 1 ? " clips, " : " images, ",
                         amount_text(f.pictures_per_second),
                         "/s (the data alone: ", amount_text(f.loader_pictures_per_second), "/s)",
                         flags.gpus > 1 ? ", without what GPUs exchange: pom plan adds that" : ""));
    print(detail::concat("the run     ", grouped(f.steps), " steps, about ", seconds_text(seconds)));
  }
  print("memory      " + bytes_text(static_cast<double>(f.memory_bytes)) +
        (flags.gpus > 1
             ? detail::concat(" on each of ", flags.gpus, " GPUs (shard ", recipe.parallel.shard, ")")
             : std::string()) +
        " for weights, moments, EMA, gradients and activations" +
        (f.free_bytes > 0 ? ", of " + bytes_text(static_cast<double>(f.free_bytes)) : std::string()));
  print(detail::concat("disk        ", bytes_text(static_cast<double>(f.checkpoint_bytes)), " a checkpoint, ",
                       recipe.log.keep, " kept"));
  if (!f.fits)
    print(
        "it does not fit: a larger batch.accumulate, batch.checkpointing or a smaller batch.size needs less");
  return f.fits ? Exit::ok : Exit::failed;
}

void print_result(const TrainFlags& flags, const train::RunResult& result) {
  if (!flags.json) return print(result.model.string());
  const char* end = result.end == train::End::finished  ? "finished"
                    : result.end == train::End::stopped ? "stopped"
                                                        : "out of time";
  print(JsonObject()
            .add("end", end)
            .add("step", result.state.step)
            .add("skipped", result.state.skipped)
            .add("loss", result.loss)
            .add("validation_loss", result.validation_loss)
            .add("seconds", result.state.seconds)
            .add("model", result.model.string())
            .text());
}

void check_flags(const TrainFlags& flags) {
  if (flags.cooldown > 0 && !flags.resume && flags.from.empty())
    throw UsageError(
        "--cooldown: needs --resume or --from, as it starts at a checkpoint; in a recipe use "
        "optimizer.cooldown");
  if (!flags.from.empty() && (flags.resume || flags.output.empty()))
    throw UsageError("--from: needs a new folder (-o DIR), and cannot be combined with --resume");
  if (!flags.init_from.empty() && (flags.resume || !flags.from.empty()))
    throw UsageError("--init-from: starts a new run; cannot be combined with --resume or --from");
}

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

// Whether torchrun may have started this run before: it has after a failure, and it may have where its
// processes have an id of their own (--rdzv-id, --standalone), for a machine that joins starts all anew.
bool was_relaunched() {
  const std::string id = variable("TORCHELASTIC_RUN_ID"), count = variable("TORCHELASTIC_RESTART_COUNT");
  return !id.empty() && (id != "none" || (!count.empty() && count != "0"));
}

int run(const TrainFlags& flags) {
  const train::Recipe recipe = recipe_of(flags);
  check_flags(flags);
  if (!flags.dry_run) on_ranks(flags.gpus);
  set_threads(recipe.run.threads);
  if (flags.dry_run) return parallel::world().first() ? print_forecast(flags, recipe) : Exit::ok;
  const StopSignals signals;
  train::Watch watch;
  watch.stop = &signals.asked();
  const parallel::Ranks& ranks = parallel::world();
  if (!flags.quiet && !ranks.first()) {
    watch.say = [](std::string_view line) { say(line); };
  } else if (!flags.quiet) {
    watch.sink = [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stderr);
      std::fflush(stderr);
    };
    watch.progress = {.terminal = is_terminal(2), .width = terminal_width(2), .unit = "step"};
    watch.say = [](std::string_view line) { say(line); };
  }
  const train::TrainOptions options{.folder = folder_of(flags, recipe),
                                    .resume = flags.resume,
                                    .from = flags.from,
                                    .init_from = flags.init_from,
                                    .cooldown = flags.cooldown,
                                    .seconds = flags.minutes * 60,
                                    .command = command_line(flags),
                                    .ranks = ranks,
                                    .launch = variable("TORCHELASTIC_RUN_ID"),
                                    .relaunched = was_relaunched()};
  const train::RunResult result = or_usage([&] { return train::train(recipe, options, watch); });
  if (!ranks.first()) return result.end == train::End::stopped ? signals.exit_code() : Exit::ok;
  print_result(flags, result);
  if (result.end == train::End::finished) return Exit::ok;
  say(detail::concat(result.end == train::End::stopped ? "stopped" : "time is up", " and saved at step ",
                     result.state.step, "; use --resume to continue"));
  return result.end == train::End::stopped ? signals.exit_code() : Exit::ok;
}

Action declare_train(Flags& flags) {
  const auto options = std::make_shared<TrainFlags>();
  flags.positional("recipe");
  flags.repeated("set");
  flags.letter("output", 'o');
  flags.letter("quiet", 'q');
  flags.add(*options);
  return [options] { return run(*options); };
}

}  // namespace

Command train_command() {
  return {
      .name = "train",
      .summary = "train a model from a recipe",
      .usage = "train RECIPE.toml [--set A.B=C ...] [--resume] [-o DIR] [flags]",
      .about =
          "Trains a network and writes a run folder: the resolved recipe, the log (JSON lines, TensorBoard), "
          "sample sheets, checkpoints, and model/, a model folder that pom sample takes at any time.\n"
          "\n"
          "Ctrl-C, SIGTERM and SIGHUP save and stop. --resume continues from the newest intact checkpoint, "
          "and the result is the same, bit for bit, as if the run had never stopped. A folder that "
          "holds a run takes no other, and a model is never replaced by one of an earlier step. Every field "
          "of a recipe has a default; recipe.toml in the run's folder shows all of them with their meaning.",
      .examples =
          "pom train recipes/shapes-tiny.toml -o out/tiny\n"
          "pom train recipes/shapes.toml --set optimizer.lr=5e-4 --set batch.size=256\n"
          "pom train out/tiny --resume\n"
          "pom train out/tiny --resume --cooldown 500\n"
          "pom train recipes/shapes.toml --dry-run",
      .declare = declare_train,
  };
}

}  // namespace pom::cli
