// `pom eval scenes`: whether a model's pictures show what their captions say, object by object.
#include <algorithm>
#include <optional>

#include <ATen/ops/zeros.h>

#include "cli/command.h"
#include "cli/eval/eval.h"
#include "cli/eval/scene_network.h"
#include "cli/eval/scene_sheet.h"
#include "cli/eval/scenes_report.h"
#include "cli/json.h"
#include "cli/output_names.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/eval/shapes_eval.h"
#include "pom/generate/engine.h"
#include "pom/io/picture.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using eval::SceneQuestion, eval::SceneVerdict;
using generate::Engine, generate::Request;
using SceneQuestions = std::span<const SceneQuestion>;

struct ScenesFiles {
  fs::path text, json, sheet;  // empty: not wanted
};

// A run of the command: what was asked, and what it stands for.
struct ScenesRun {
  const EvalOptions& options;
  const StopSignals& signals;
  std::optional<Engine> engine = {};  // none of drawings
  ScenesFiles files = {};
  eval::Canvas canvas = {};
  Request request = {};
  std::vector<std::string> splits = {};
  std::vector<SceneQuestion> questions = {};
  std::vector<io::Image> cells = {};              // of the sheet
  std::optional<SceneNetwork> network = {};       // where a file for it is given
  std::vector<at::Tensor> seen = {}, drawn = {};  // its features of pictures and of drawings

  std::int64_t count() const { return options.count.value_or(500); }
  // A picture's noise is the same whichever splits are asked for.
  std::int64_t seed_of(const SceneQuestion& question) const {
    return options.seed + question.split * count() + question.number;
  }
  SceneQuestions part(std::int64_t begin, std::int64_t end) const {
    return SceneQuestions(questions).subspan(static_cast<std::size_t>(begin),
                                             static_cast<std::size_t>(end - begin));
  }
};

// ---- before the work ----

void plan_scene_model(ScenesRun& run) {
  run.engine.emplace(run.options.model, run.options.device);
  as_usage([&] {
    Request request = run.options.request;
    request.seed = {run.options.seed};
    request.prompt = {""};
    request.frames = "1";
    if (!run.options.size.empty()) generate::set_size(request, run.options.size);
    run.request = run.engine->resolve(request).first();
  });
  run.canvas = {*run.request.width, *run.request.height};
}

void plan_scene_drawings(ScenesRun& run) {
  Request sized;
  as_usage([&] { generate::set_size(sized, run.options.size.empty() ? "64" : run.options.size); });
  run.canvas = {*sized.width, *sized.height};
}

void plan_scene_splits(ScenesRun& run) {
  for (const std::string& name : run.options.splits)
    if (std::ranges::find(eval::scene_splits(), name) == eval::scene_splits().end())
      throw UsageError(
          detail::concat("--splits: scenes have training, new_wordings, new_pairs, "
                         "new_relations and new_all, got ",
                         name));
  for (const std::string& split : eval::scene_splits())  // in their order, each once
    if (run.options.splits.empty() ||
        std::ranges::find(run.options.splits, split) != run.options.splits.end())
      run.splits.push_back(split);
}

ScenesFiles scene_files_of(const EvalOptions& options) {
  ScenesFiles files;
  files.sheet = options.sheet;
  if (options.output.empty()) return files;
  const fs::path folder = options.output;
  files.text = folder / "report.txt";
  files.json = folder / "report.json";
  if (files.sheet.empty()) files.sheet = folder / "pictures.png";
  return files;
}

void check_scene_files(const ScenesFiles& files, const fs::path& judge, bool replace) {
  std::vector<fs::path> all;
  for (const fs::path& file : {files.text, files.json, files.sheet})
    if (!file.empty()) all.push_back(file);
  if (!files.sheet.empty()) as_usage([&] { io::check_picture_name(files.sheet); });
  check_outputs(all, replace);
  if (!judge.empty() && !fs::exists(judge)) check_outputs(std::vector{judge}, false);
}

void plan_scenes(ScenesRun& run) {
  if (run.options.judge.empty() && (run.options.judge_steps || run.options.judge_seed != 0))
    throw UsageError("--judge-steps, --judge-seed: expected a file for the judge (--judge), got none");
  plan_scene_splits(run);
  if (run.options.drawings)
    plan_scene_drawings(run);
  else
    plan_scene_model(run);
  if (run.canvas.width < 16 || run.canvas.height < 16)
    throw UsageError(detail::concat("expected pictures of at least 16x16, got ", run.canvas.width, "x",
                                    run.canvas.height));
  run.files = scene_files_of(run.options);
  check_scene_files(run.files, run.options.judge, run.options.yes);
  run.questions =
      eval::scene_questions(run.splits, static_cast<std::uint64_t>(run.options.seed), run.count());
}

// ---- the work ----

// The first pictures of each split.
void keep_scene_cells(ScenesRun& run, SceneQuestions questions, const at::Tensor& pictures,
                      const std::vector<SceneVerdict>& verdicts) {
  constexpr std::int64_t most = 12;
  if (run.files.sheet.empty()) return;
  for (std::size_t i = 0; i < questions.size(); ++i)
    if (questions[i].number < most)
      run.cells.push_back(scene_cell(pictures[static_cast<std::int64_t>(i)], questions[i], verdicts[i]));
}

eval::SceneTable judge_scene_drawings(ScenesRun& run) {
  constexpr std::int64_t at_a_time = 256;
  eval::SceneTable table(run.splits);
  const std::int64_t all = std::ssize(run.questions);
  Watch watch(run.signals, run.options.quiet, "judging drawings", "picture");
  watch(0, all);
  for (std::int64_t begin = 0; begin < all; begin += at_a_time) {
    const SceneQuestions questions = run.part(begin, std::min(begin + at_a_time, all));
    const at::Tensor pictures = eval::draw_scenes(questions, run.canvas);
    const std::vector<SceneVerdict> verdicts =
        eval::judge_scenes(pictures, [&](std::int64_t done) { watch(begin + done, all); });
    table.add(questions, verdicts);
    if (run.network) table.add_readings(questions, run.network->compare(pictures, verdicts, run.drawn));
    if (!run.engine) keep_scene_cells(run, questions, pictures, verdicts);
  }
  return table;
}

// The pictures of these questions, each with its own caption and noise.
generate::Job scene_job(const ScenesRun& run, SceneQuestions questions) {
  generate::Job job = run.engine->resolve(run.request);
  job.items.resize(questions.size(), job.items.front());
  for (std::size_t i = 0; i < questions.size(); ++i) {
    job.items[i].prompt = {questions[i].caption};
    job.items[i].seed = {run.seed_of(questions[i])};
  }
  return job;
}

std::int64_t scene_batch(const ScenesRun& run) {
  if (run.options.batch > 0) return run.options.batch;
  return run.engine->device().starts_with("cuda") ? 512 : 32;
}

at::Tensor make_scene_pictures(ScenesRun& run, SceneQuestions questions,
                               const std::function<void(std::int64_t, std::int64_t)>& on_evaluation) {
  at::Tensor pictures = at::zeros({std::ssize(questions), 3, run.canvas.height, run.canvas.width}, at::kByte);
  generate::Observer observer;
  observer.stop = &run.signals.asked();
  observer.on_evaluation = on_evaluation;
  observer.on_frames = [&](generate::Frames&& frames) {
    if (frames.first == 0) pictures[frames.item].copy_(eval::stack_pictures({&frames.images.front(), 1})[0]);
  };
  run_share(*run.engine, scene_job(run, questions), scene_batch(run), observer);
  add_up(pictures);
  return pictures;
}

eval::SceneTable judge_scene_pictures(ScenesRun& run) {
  eval::SceneTable table(run.splits);
  const std::int64_t all = std::ssize(run.questions), batch = scene_batch(run) * parallel::world().size(),
                     batches = (all + batch - 1) / batch;
  Watch watch(run.signals, run.options.quiet, "sampling", "evaluation");
  for (std::int64_t i = 0; i < batches; ++i) {
    const SceneQuestions questions = run.part(i * all / batches, (i + 1) * all / batches);
    const at::Tensor pictures = make_scene_pictures(
        run, questions,
        [&](std::int64_t done, std::int64_t total) { watch(i * total + done, batches * total); });
    if (!parallel::world().first()) continue;
    const std::vector<SceneVerdict> verdicts = eval::judge_scenes(pictures, [&](std::int64_t) {
      if (run.signals.asked().load(std::memory_order_relaxed)) throw generate::Stopped();
    });
    table.add(questions, verdicts);
    if (run.network) table.add_readings(questions, run.network->compare(pictures, verdicts, run.seen));
    keep_scene_cells(run, questions, pictures, verdicts);
  }
  return table;
}

ScenesFindings judge_all_scenes(ScenesRun& run) {
  const bool judges = parallel::world().first();
  if (judges && !run.options.judge.empty()) run.network.emplace(run.options, run.canvas, run.signals);
  wait_for_all();
  ScenesFindings findings{judges ? judge_scene_drawings(run) : eval::SceneTable(run.splits), {}};
  if (run.engine) findings.pictures = judge_scene_pictures(run);
  if (run.network)
    findings.network = {run.network->rates(), run.network->frechet(run.seen),
                        run.network->frechet(run.drawn)};
  return findings;
}

// ---- what came of it ----

std::string scenes_heading(const ScenesRun& run) {
  std::string text = detail::concat(run.engine ? run.engine->name() : "drawings", " at ", run.canvas.width,
                                    "x", run.canvas.height, ", ", run.splits.size(), " x ",
                                    grouped(run.count()), " pictures, seed ", run.options.seed);
  if (run.engine)
    text +=
        detail::concat("\n", steps_text(*run.request.sampler, *run.request.steps, *run.request.shift), ", ",
                       guidance_text(*run.request.cfg_scale, *run.request.cfg_from, *run.request.cfg_to),
                       ", ", *run.request.dtype, ", on ", run.engine->device());
  return text + "\n\n";
}

std::string scenes_json(const ScenesRun& run, const ScenesFindings& findings) {
  JsonObject result;
  result.add("what", run.options.what);
  if (run.engine) add_model(result, *run.engine, run.request);
  result.add("size", std::vector{run.canvas.width, run.canvas.height});
  result.add("count", run.count()).add("seed", run.options.seed).add("splits", run.splits);
  add_scenes(result, findings);
  return result.text();
}

void write_scene_files(const ScenesRun& run, const ScenesFindings& findings) {
  if (!run.files.text.empty()) write_text(run.files.text, scenes_heading(run) + scenes_text(findings));
  if (!run.files.json.empty()) write_text(run.files.json, scenes_json(run, findings) + "\n");
  if (run.files.sheet.empty()) return;
  make_folder_of(run.files.sheet);
  io::write_picture(run.files.sheet, scene_sheet(run.cells, 6), {});
}

}  // namespace

int eval_scenes(const EvalOptions& options) {
  const StopSignals signals;
  ScenesRun run{.options = options, .signals = signals};
  plan_scenes(run);
  return print_findings(options, signals, [&] {
    const ScenesFindings findings = judge_all_scenes(run);
    if (!parallel::world().first()) return Findings{};
    write_scene_files(run, findings);
    return Findings{scenes_heading(run) + scenes_text(findings), scenes_json(run, findings)};
  });
}

}  // namespace pom::cli
