// `pom eval shapes`: how well a model draws shapes, by a judge that learnt them from drawings alone.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/eval_report.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/output_names.h"
#include "cli/processor.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/progress.h"
#include "pom/data/shapes.h"
#include "pom/eval/shapes_eval.h"
#include "pom/generate/device.h"
#include "pom/generate/engine.h"
#include "pom/generate/metadata.h"
#include "pom/io/atomic_file.h"
#include "pom/io/picture.h"
#include "pom/io/sheet.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Engine, generate::Request;

struct EvalOptions {
  std::string what, model, device = "auto", size, judge, sheet, output;
  std::int64_t count = 1000, seeds = 3, seed = 0, judge_seed = 0, judge_steps = eval::JudgeConfig().steps;
  std::int64_t batch = 0, threads = 0;
  Request request;  // how to sample
  bool drawings = false, yes = false, json = false, quiet = false;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view about = "About", judging = "The judge", where = "Where it goes",
                               work = "How to work";
    visit(Field{.name = "what",
                .help = "what the pictures show",
                .value = "shapes",
                .group = about,
                .choices = {"shapes"}},
          what);
    visit(Field{.name = "model", .help = "folder of the model", .value = "MODEL", .group = about}, model);
    visit(Field{.name = "drawings",
                .help = "judge new drawings in place of a model's pictures: the best that can be had",
                .group = about},
          drawings);
    visit(Field{.name = "count",
                .help = "pictures for each seed, spread evenly over the classes",
                .value = "N",
                .group = about,
                .least = 1,
                .most = 1'000'000},
          count);
    visit(Field{.name = "seeds",
                .help = "repetitions with other pictures, for the spread",
                .value = "N",
                .group = about,
                .least = 1,
                .most = 1000},
          seeds);
    visit(Field{.name = "seed", .help = "of the first picture", .value = "N", .group = about, .least = 0},
          seed);
    visit(Field{.name = "size",
                .help = "width and height in pixels, 64x48 or 64; the model's own unless told",
                .value = "WxH",
                .group = about},
          size);
    sampling_fields(visit);
    visit(Field{.name = "judge",
                .help = "file of the judge: read where it is there, else written; without it a new one is "
                        "trained",
                .value = "FILE",
                .group = judging},
          judge);
    visit(Field{.name = "judge_steps",
                .help = "of its training",
                .value = "N",
                .group = judging,
                .least = 1,
                .most = 1'000'000},
          judge_steps);
    visit(Field{.name = "judge_seed", .help = "of its drawings", .value = "N", .group = judging, .least = 0},
          judge_seed);
    visit(Field{.name = "output",
                .help = "folder for report.txt, report.json, sheet.png and the judge",
                .value = "DIR",
                .group = where},
          output);
    visit(Field{.name = "sheet",
                .help = "a sheet of pictures; a star that is taken for a moon is labelled star?moon",
                .value = "FILE",
                .group = where},
          sheet);
    visit(Field{.name = "yes", .help = "replace files that are there", .group = where}, yes);
    visit(Field{.name = "json", .help = "the result as one JSON object", .group = where}, json);
    visit(Field{.name = "quiet", .help = "no progress, no remarks", .group = where}, quiet);
    visit(generate::device_field(work), device);
    visit(Field{.name = "batch",
                .help = "pictures at a time; unless told, what memory and speed suggest",
                .value = "N",
                .group = work,
                .least = 1,
                .most = 65536},
          batch);
    visit(Field{.name = "threads",
                .help = "unless told, one for each core",
                .value = "N",
                .group = work,
                .least = 1,
                .most = 1024},
          threads);
  }

  // Those of a request that say how, not what.
  template <class Visit>
  void sampling_fields(Visit&& visit) {
    request.fields([&](const Field& field, auto& value) {
      if (field.group == "How to sample") visit(field, value);
    });
  }
};

struct Files {
  fs::path text, json, sheet, judge;  // empty: not wanted
};

// A run of the command: what was asked, and what it stands for.
struct Run {
  const EvalOptions& options;
  const StopSignals& signals;
  std::optional<Engine> engine = {};  // none of drawings
  Files files = {};
  eval::Canvas canvas = {};
  std::vector<std::int64_t> classes = {}, asked = {};  // shapes: of the model, and of each picture
  Request request = {};                                // of the first repetition
  std::optional<eval::Judge> judge = {};
  double judge_rate = 0;
  std::vector<io::Image> shown = {};  // of the first repetition, for the sheet
  std::vector<std::string> labels = {};

  std::int64_t per_class() const { return std::ssize(asked) / std::ssize(classes); }
  void remark(const std::string& text) const {
    if (!options.quiet) say(text);
  }
};

// Everything of the work that can be shown as one bar; stops where a signal asked.
class Watch {
 public:
  Watch(const Run& run, std::string what, std::string unit)
      : run_(run), what_(std::move(what)), unit_(std::move(unit)) {}
  void operator()(std::int64_t done, std::int64_t total, const std::string& note = {}) {
    if (run_.signals.asked().load(std::memory_order_relaxed)) throw generate::Stopped();
    if (run_.options.quiet) return;
    if (!progress_)
      progress_.emplace(
          what_, total, progress_sink(std::cerr),
          ProgressOptions{.terminal = is_terminal(2), .width = terminal_width(2), .unit = unit_});
    if (!note.empty()) progress_->note(note);
    progress_->set(done);
    if (done == total) progress_->finish();
  }

 private:
  const Run& run_;
  const std::string what_, unit_;
  std::optional<Progress> progress_;
};

// ---- before the work ----

void check_options(const EvalOptions& options) {
  if (options.what.empty()) throw UsageError("expected what to judge, got nothing: pom eval shapes MODEL");
  if (options.drawings && !options.model.empty())
    throw UsageError("--drawings: expected alone, got the model " + options.model + " as well");
  if (!options.drawings && options.model.empty())
    throw UsageError("expected the folder of a model, or --drawings, got neither");
  as_usage([&] { generate::device_named(options.device, "eval"); });
}

Files files_of(const EvalOptions& options, const eval::Canvas& canvas) {
  Files files;
  files.sheet = options.sheet;
  files.judge = options.judge;
  if (options.output.empty()) return files;
  const fs::path folder = options.output;
  files.text = folder / "report.txt";
  files.json = folder / "report.json";
  if (files.sheet.empty()) files.sheet = folder / "sheet.png";
  if (files.judge.empty())
    files.judge = folder / detail::concat("judge-", canvas.width, "x", canvas.height, ".safetensors");
  return files;
}

void check_files(const Files& files, bool replace) {
  std::vector<fs::path> all;
  for (const fs::path& file : {files.text, files.json, files.sheet})
    if (!file.empty()) all.push_back(file);
  if (!files.sheet.empty()) as_usage([&] { io::check_picture_name(files.sheet); });
  check_outputs(all, replace);
  if (!files.judge.empty() && !fs::exists(files.judge)) check_outputs(std::vector{files.judge}, false);
}

void plan_drawings(Run& run) {
  Request sized;
  as_usage([&] { generate::set_size(sized, run.options.size.empty() ? "64" : run.options.size); });
  run.canvas = {*sized.width, *sized.height};
  run.classes = eval::shapes_named(data::shape_names());
}

void plan_model(Run& run) {
  run.engine.emplace(run.options.model, run.options.device);
  run.classes = eval::shapes_named(run.engine->config().classes);
  Request request = run.options.request;
  request.class_name = "all";
  request.seed = run.options.seed;
  as_usage([&] {
    if (!run.options.size.empty()) generate::set_size(request, run.options.size);
    run.request = run.engine->resolve(request).front();
  });
  run.canvas = {*run.request.width, *run.request.height};
}

void plan(Run& run) {
  if (run.options.drawings)
    plan_drawings(run);
  else
    plan_model(run);
  const std::int64_t classes = std::ssize(run.classes), count = run.options.count;
  const std::int64_t each = std::max<std::int64_t>(2, (count + classes - 1) / classes);  // a spread needs two
  if (each * classes != count)
    run.remark(detail::concat(each * classes, " pictures, so that there are as many of each class"));
  run.asked = eval::each_so_often(run.classes, each);
  run.request.class_name = "all";
  run.request.count = each;
  run.files = files_of(run.options, run.canvas);
  check_files(run.files, run.options.yes);
}

// ---- the work ----

eval::Judge train_judge(const Run& run) {
  eval::JudgeConfig config;
  config.canvas = run.canvas;
  config.seed = static_cast<std::uint64_t>(run.options.judge_seed);
  config.steps = run.options.judge_steps;
  Watch watch(run, "training the judge", "step");
  return eval::Judge::train(config, [&](std::int64_t step, std::int64_t total, double loss) {
    char note[32];
    std::snprintf(note, sizeof note, "loss %.3f", loss);
    watch(step, total, note);
  });
}

void find_judge(Run& run) {
  const fs::path& file = run.files.judge;
  const bool there = !file.empty() && fs::exists(file);
  run.judge = there ? eval::Judge::read(file, run.canvas) : train_judge(run);
  if (!there && !file.empty()) {
    make_folder_of(file);
    run.judge->write(file);
  }
  run.judge_rate = eval::held_out_rate(*run.judge);
  constexpr double trusted = 0.99;
  if (run.judge_rate < trusted)
    say(detail::concat("the judge itself recognises ", 100 * run.judge_rate,
                       " % of new drawings: more --judge-steps make a better one"));
}

at::Tensor make_pictures(Run& run, std::int64_t index) {
  const std::int64_t count = std::ssize(run.asked);
  if (!run.engine)
    return eval::draw(eval::DrawnFor::ceiling, static_cast<std::uint64_t>(run.options.seed), index * count,
                      run.asked, run.canvas)
        .pictures;
  Request request = run.request;
  request.seed += index * count;
  Watch watch(run, detail::concat("sampling ", index + 1, "/", run.options.seeds), "evaluation");
  std::vector<io::Image> images;
  generate::Observer observer;
  observer.stop = &run.signals.asked();
  observer.on_evaluation = [&](std::int64_t done, std::int64_t total) { watch(done, total); };
  observer.on_picture = [&](generate::Picture&& picture) { images.push_back(std::move(picture.image)); };
  run.engine->run(request, {.batch = run.options.batch}, observer);
  return eval::stack_pictures(images);
}

// The first pictures of each class, those that were not recognised with what they were taken for.
void keep_for_sheet(Run& run, const at::Tensor& pictures, const eval::Verdicts& verdicts) {
  constexpr std::int64_t most = 12;
  const at::Tensor seen = verdicts.kinds.contiguous();
  const std::vector<io::Image> images = eval::unstack_pictures(pictures);
  const std::vector<std::string>& names = data::shape_names();
  for (std::size_t i = 0; i < images.size(); ++i) {
    if (static_cast<std::int64_t>(i) % run.per_class() >= most) continue;
    const std::int64_t asked = run.asked[i], taken = seen.const_data_ptr<std::int64_t>()[i];
    const std::string& name = names[static_cast<std::size_t>(asked)];
    run.shown.push_back(images[i]);
    run.labels.push_back(taken == asked ? name : name + "?" + names[static_cast<std::size_t>(taken)]);
  }
}

eval::ShapesReport work(Run& run) {
  find_judge(run);
  std::vector<eval::Repetition> repetitions;
  for (std::int64_t i = 0; i < run.options.seeds; ++i) {
    const at::Tensor pictures = make_pictures(run, i);
    repetitions.push_back(eval::judge_repetition(*run.judge, pictures, run.asked,
                                                 static_cast<std::uint64_t>(run.options.seed), i));
    if (i == 0 && !run.files.sheet.empty()) keep_for_sheet(run, pictures, repetitions.back().pictures);
  }
  return eval::make_report(repetitions, run.asked, run.classes);
}

// ---- what came of it ----

std::string heading(const Run& run) {
  const std::int64_t count = std::ssize(run.asked), all = count * run.options.seeds;
  std::string text =
      detail::concat(run.engine ? run.engine->name() : "drawings", " at ", run.canvas.width, "x",
                     run.canvas.height, ": ", run.options.seeds, " x ", grouped(count), " pictures, seeds ",
                     run.options.seed, " to ", run.options.seed + all - 1);
  if (run.engine)
    text += detail::concat("\n", *run.request.sampler, ", ", *run.request.steps, " steps, ",
                           guidance_text(*run.request.cfg_scale, *run.request.cfg_from, *run.request.cfg_to),
                           ", ", *run.request.dtype, ", on ", run.engine->device());
  char judge[96];
  std::snprintf(judge, sizeof judge, "\nthe judge recognises %.2f %% of drawings it never saw\n\n",
                100 * run.judge_rate);
  return text + judge;
}

std::string json_text(const Run& run, const eval::ShapesReport& report) {
  JsonObject result;
  result.add("what", run.options.what);
  if (run.engine) {
    result.add("model", JsonObject()
                            .add("name", run.engine->name())
                            .add("folder", run.engine->folder().string())
                            .add("sha256", run.engine->weights_hash()));
    result.raw("request", generate::request_json(run.request));
    result.add("device", run.engine->device());
  }
  result.add("size", std::vector{run.canvas.width, run.canvas.height});
  result.add("count", report.count).add("seeds", report.repetitions).add("seed", run.options.seed);
  result.add("judge", JsonObject()
                          .add("held_out", run.judge_rate)
                          .add("seed", static_cast<std::int64_t>(run.judge->config().seed))
                          .add("steps", run.judge->config().steps)
                          .add("file", run.files.judge.string()));
  add_report(result, report);
  return result.text();
}

void write_text(const fs::path& path, const std::string& text) {
  make_folder_of(path);
  io::write_file_atomically(path, text);
}

void write_files(const Run& run, const eval::ShapesReport& report) {
  if (!run.files.text.empty()) write_text(run.files.text, heading(run) + report_text(report));
  if (!run.files.json.empty()) write_text(run.files.json, json_text(run, report) + "\n");
  if (run.files.sheet.empty()) return;
  io::SheetOptions sheet;
  sheet.columns = static_cast<int>(std::ssize(run.shown) / std::ssize(run.classes));
  sheet.labels = run.labels;
  make_folder_of(run.files.sheet);
  io::write_picture(run.files.sheet, io::make_sheet(run.shown, sheet), {});
}

int evaluate(const EvalOptions& options) {
  check_options(options);
  set_threads(options.threads);
  const StopSignals signals;
  Run run{.options = options, .signals = signals};
  plan(run);
  try {
    const eval::ShapesReport report = work(run);
    write_files(run, report);
    if (options.json) {
      print(json_text(run, report));
    } else {
      std::string text = heading(run) + report_text(report);
      text.pop_back();  // print() ends the line
      print(text);
    }
  } catch (const generate::Stopped&) {
    say("stopped; nothing was judged");
    return signals.exit_code();
  }
  return Exit::ok;
}

Action declare(Flags& flags) {
  const auto options = std::make_shared<EvalOptions>();
  flags.positional("what");
  flags.positional("model");
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.letter("quiet", 'q');
  flags.add(*options);
  return [options] { return evaluate(*options); };
}

}  // namespace

Command eval_command() {
  return {
      .name = "eval",
      .summary = "measure how well a model draws",
      .usage = "eval shapes MODEL [flags]",
      .about =
          "Trains a small convolutional judge on drawings of shapes, at the size of the model's pictures, "
          "and "
          "asks it about pictures that the model makes: how many are recognised as what they should be, what "
          "the others are taken for, how much pictures of one class differ in hue, position and size, and "
          "how "
          "far their features are from those of drawings (the Frechet distance). As many drawings, judged "
          "the "
          "same way, stand beside each number; the spread is that over the seeds.\n"
          "\n"
          "The judge never sees a generated picture before it judges it, and none of its drawings are "
          "those of a training.",
      .examples =
          "pom eval shapes assets/shapes64 --count 100 --judge out/judge64.safetensors\n"
          "pom eval shapes assets/shapes64 --cfg-scale 1 --json\n"
          "pom eval shapes --drawings --size 64",
      .declare = declare,
  };
}

}  // namespace pom::cli
