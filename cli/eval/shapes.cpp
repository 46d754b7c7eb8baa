// `pom eval shapes`: how well a model draws shapes, by a judge that learnt them from drawings alone.
#include "pom/data/shapes.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/zeros.h>

#include "cli/command.h"
#include "cli/eval/eval.h"
#include "cli/eval/report.h"
#include "cli/json.h"
#include "cli/output_names.h"
#include "cli/signals.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/eval/shapes_eval.h"
#include "pom/generate/engine.h"
#include "pom/io/picture.h"
#include "pom/io/sheet.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using generate::Engine, generate::Request;

struct ShapesFiles {
  fs::path text, json, sheet, judge;  // empty: not wanted
};

// A run of the command: what was asked, and what it stands for.
struct ShapesRun {
  const EvalOptions& options;
  const StopSignals& signals;
  std::optional<Engine> engine = {};  // none of drawings
  ShapesFiles files = {};
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

// ---- before the work ----

ShapesFiles files_of(const EvalOptions& options, const eval::Canvas& canvas) {
  ShapesFiles files;
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

void check_files(const ShapesFiles& files, bool replace) {
  std::vector<fs::path> all;
  for (const fs::path& file : {files.text, files.json, files.sheet})
    if (!file.empty()) all.push_back(file);
  if (!files.sheet.empty()) as_usage([&] { io::check_picture_name(files.sheet); });
  check_outputs(all, replace);
  if (!files.judge.empty() && !fs::exists(files.judge)) check_outputs(std::vector{files.judge}, false);
}

void plan_drawings(ShapesRun& run) {
  Request sized;
  as_usage([&] { generate::set_size(sized, run.options.size.empty() ? "64" : run.options.size); });
  run.canvas = {*sized.width, *sized.height};
  run.classes = eval::shapes_named(data::shape_names());
}

void plan_model(ShapesRun& run) {
  run.engine.emplace(run.options.model, run.options.device);
  run.classes = eval::shapes_named(run.engine->config().classes);
  Request request = run.options.request;
  request.class_name = "all";
  request.seed = {run.options.seed};
  as_usage([&] {
    if (!run.options.size.empty()) generate::set_size(request, run.options.size);
    run.request = run.engine->resolve(request).first();
  });
  run.canvas = {*run.request.width, *run.request.height};
}

void plan(ShapesRun& run) {
  if (run.options.drawings)
    plan_drawings(run);
  else
    plan_model(run);
  const std::int64_t classes = std::ssize(run.classes), count = run.options.count.value_or(1000);
  const std::int64_t each = std::max<std::int64_t>(2, (count + classes - 1) / classes);  // a spread needs two
  if (each * classes != count)
    run.remark(detail::concat(each * classes, " images, so that there are as many of each class"));
  run.asked = eval::each_so_often(run.classes, each);
  run.request.class_name = "all";
  run.request.count = each;
  run.files = files_of(run.options, run.canvas);
  check_files(run.files, run.options.yes);
}

// ---- the work ----

eval::Judge train_judge(const ShapesRun& run) {
  eval::JudgeConfig config;
  config.canvas = run.canvas;
  config.seed = static_cast<std::uint64_t>(run.options.judge_seed);
  config.steps = run.options.judge_steps.value_or(config.steps);
  Watch watch(run.signals, run.options.quiet, "training the judge", "step");
  return eval::Judge::train(config, [&](std::int64_t step, std::int64_t total, double loss) {
    char note[32];
    std::snprintf(note, sizeof note, "loss %.3f", loss);
    watch(step, total, note);
  });
}

void find_judge(ShapesRun& run) {
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

at::Tensor make_pictures(ShapesRun& run, std::int64_t index) {
  const std::int64_t count = std::ssize(run.asked);
  if (!run.engine)
    return eval::draw(eval::DrawnFor::ceiling, static_cast<std::uint64_t>(run.options.seed), index * count,
                      run.asked, run.canvas)
        .pictures;
  Request request = run.request;
  request.seed = {run.options.seed + index * count};
  Watch watch(run.signals, run.options.quiet, detail::concat("sampling ", index + 1, "/", run.options.seeds),
              "evaluation");
  at::Tensor pictures = at::zeros({count, 3, run.canvas.height, run.canvas.width}, at::kByte);
  generate::Observer observer;
  observer.stop = &run.signals.asked();
  observer.on_evaluation = [&](std::int64_t done, std::int64_t total) { watch(done, total); };
  observer.on_frames = [&](generate::Frames&& frames) {
    pictures[frames.item].copy_(eval::stack_pictures(frames.images)[0]);
  };
  run_share(*run.engine, run.engine->resolve(request), run.options.batch, observer);
  add_up(pictures);
  return pictures;
}

// The first pictures of each class, those that were not recognised with what they were taken for.
void keep_for_sheet(ShapesRun& run, const at::Tensor& pictures, const eval::Verdicts& verdicts) {
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

// The first rank's; of the others, what they have to do for it.
eval::ShapesReport work(ShapesRun& run) {
  const bool judges = parallel::world().first();
  if (judges) find_judge(run);
  wait_for_all();
  std::vector<eval::Repetition> repetitions;
  for (std::int64_t i = 0; i < run.options.seeds; ++i) {
    const at::Tensor pictures = make_pictures(run, i);
    if (!judges) continue;
    repetitions.push_back(eval::judge_repetition(*run.judge, pictures, run.asked,
                                                 static_cast<std::uint64_t>(run.options.seed), i));
    if (i == 0 && !run.files.sheet.empty()) keep_for_sheet(run, pictures, repetitions.back().pictures);
  }
  return judges ? eval::make_report(repetitions, run.asked, run.classes) : eval::ShapesReport();
}

// ---- what came of it ----

std::string heading(const ShapesRun& run) {
  const std::int64_t count = std::ssize(run.asked), all = count * run.options.seeds;
  std::string text = detail::concat(run.engine ? run.engine->name() : "drawings", " at ", run.canvas.width,
                                    "x", run.canvas.height, ": ", run.options.seeds, " x ", grouped(count),
                                    " images, seeds ", run.options.seed, " to ", run.options.seed + all - 1);
  if (run.engine)
    text +=
        detail::concat("\n", steps_text(*run.request.sampler, *run.request.steps, *run.request.shift), ", ",
                       guidance_text(*run.request.cfg_scale, *run.request.cfg_from, *run.request.cfg_to),
                       ", ", *run.request.dtype, ", on ", run.engine->device());
  char judge[96];
  std::snprintf(judge, sizeof judge, "\nthe judge recognises %.2f %% of drawings it never saw\n\n",
                100 * run.judge_rate);
  return text + judge;
}

std::string json_text(const ShapesRun& run, const eval::ShapesReport& report) {
  JsonObject result;
  result.add("what", run.options.what);
  if (run.engine) add_model(result, *run.engine, run.request);
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

void write_files(const ShapesRun& run, const eval::ShapesReport& report) {
  if (!run.files.text.empty()) write_text(run.files.text, heading(run) + report_text(report));
  if (!run.files.json.empty()) write_text(run.files.json, json_text(run, report) + "\n");
  if (run.files.sheet.empty()) return;
  io::SheetOptions sheet;
  sheet.columns = static_cast<int>(std::ssize(run.shown) / std::ssize(run.classes));
  sheet.labels = run.labels;
  make_folder_of(run.files.sheet);
  io::write_picture(run.files.sheet, io::make_sheet(run.shown, sheet), {});
}

}  // namespace

int eval_shapes(const EvalOptions& options) {
  const StopSignals signals;
  ShapesRun run{.options = options, .signals = signals};
  plan(run);
  return print_findings(options, signals, [&] {
    const eval::ShapesReport report = work(run);
    if (!parallel::world().first()) return Findings{};
    write_files(run, report);
    return Findings{heading(run) + report_text(report), json_text(run, report)};
  });
}

}  // namespace pom::cli
