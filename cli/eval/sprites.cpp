// `pom eval sprites`: whether a model's clips show what their captions say, also late in a long stream.
#include <algorithm>
#include <charconv>
#include <optional>

#include "cli/command.h"
#include "cli/eval/clip_sheet.h"
#include "cli/eval/eval.h"
#include "cli/eval/sprites_report.h"
#include "cli/json.h"
#include "cli/output_names.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/generate/engine.h"
#include "pom/io/picture.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using eval::SpriteAgreement, eval::SpriteQuestion;
using generate::Engine, generate::Request;
using Questions = std::span<const SpriteQuestion>;

struct SpritesFiles {
  fs::path text, json, sheet, curve;  // empty: not wanted
};

// A run of the command: what was asked, and what it stands for.
struct SpritesRun {
  const EvalOptions& options;
  const StopSignals& signals;
  std::optional<Engine> engine = {};  // none of drawings
  SpritesFiles files = {};
  data::ClipFormat format = {};  // of what is judged: as long as the model's own clips
  Request request = {};
  eval::SpriteParts parts = {};
  std::vector<std::string> splits = {};
  std::vector<std::int64_t> windows = {};
  std::vector<SpriteQuestion> questions = {};
  ClipSheet sheet = {};

  std::int64_t count() const { return options.count.value_or(500); }
  // A clip's noise is the same whichever splits are asked for.
  std::uint64_t seed_of(const SpriteQuestion& question) const {
    return static_cast<std::uint64_t>(options.seed + question.split * count() + question.number);
  }
};

// ---- before the work ----

std::int64_t window_named(const std::string& text, const models::NetworkConfig& network) {
  if (text == "model") return network.window;
  if (text == "none") return 0;
  std::int64_t window = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, window);
  if (error != std::errc() || stop != end || window < 1 || window > 1'000'000)
    throw UsageError(detail::concat(
        "--window: expected a number of blocks, 1 to 1000000, model or none, got \"", text, "\""));
  return window;
}

void plan_windows(SpritesRun& run) {
  const models::NetworkConfig& network = run.engine->config().network;
  std::vector<std::string> wanted = run.options.window;
  if (wanted.empty()) wanted = {"model"};
  for (const std::string& text : wanted) {
    const std::int64_t window = window_named(text, network);
    if (std::ranges::find(run.windows, window) == run.windows.end()) run.windows.push_back(window);
  }
  if (run.windows.size() > 2)
    throw UsageError(detail::concat("--window: expected one or two, got ", run.windows.size()));
  if (network.block_causal()) return;
  constexpr const char* why =
      ": expected a block-causal model, got one whose blocks all see each other, which ";
  if (run.windows != std::vector<std::int64_t>{0})
    throw UsageError(detail::concat("--window", why, "has no window"));
  if (run.parts.last() > run.parts.frames)
    throw UsageError(detail::concat("--lengths", why, "cannot go on beyond its own length"));
}

void plan_model(SpritesRun& run) {
  run.engine.emplace(run.options.model, run.options.device);
  as_usage([&] {
    Request request = run.options.request;
    request.seed = {run.options.seed};
    request.prompt = {""};
    if (!run.options.size.empty()) generate::set_size(request, run.options.size);
    const generate::Job job = run.engine->resolve(request);
    run.request = job.first();
    run.format = {
        .width = *run.request.width, .height = *run.request.height, .frames = job.frames, .fps = job.fps};
  });
}

void plan_drawings(SpritesRun& run) {
  if (!run.options.window.empty()) throw UsageError("--window: expected a model, got --drawings");
  if (run.options.size.empty()) return;
  Request sized;
  as_usage([&] { generate::set_size(sized, run.options.size); });
  run.format.width = *sized.width, run.format.height = *sized.height;
}

SpritesFiles files_of(const EvalOptions& options, bool curve) {
  SpritesFiles files;
  files.sheet = options.sheet;
  if (options.output.empty()) return files;
  const fs::path folder = options.output;
  files.text = folder / "report.txt";
  files.json = folder / "report.json";
  if (files.sheet.empty()) files.sheet = folder / "clips.png";
  if (curve) files.curve = folder / "curve.svg";
  return files;
}

void check_files(const SpritesFiles& files, bool replace) {
  std::vector<fs::path> all;
  for (const fs::path& file : {files.text, files.json, files.sheet, files.curve})
    if (!file.empty()) all.push_back(file);
  if (!files.sheet.empty()) as_usage([&] { io::check_picture_name(files.sheet); });
  check_outputs(all, replace);
}

void plan(SpritesRun& run) {
  const EvalOptions& options = run.options;
  if (options.drawings)
    plan_drawings(run);
  else
    plan_model(run);
  run.format.frames = options.frames.value_or(run.format.frames);
  if (run.format.frames < 2 || run.format.width < 8 || run.format.height < 8)
    throw UsageError(detail::concat("expected clips of at least 2 frames of 8x8, got ", run.format.frames,
                                    " of ", run.format.width, "x", run.format.height));
  run.parts = {run.format.frames, options.lengths};
  if (options.lengths.empty()) run.parts.lengths = {1};
  std::ranges::sort(run.parts.lengths);
  const auto [first, last] = std::ranges::unique(run.parts.lengths);
  run.parts.lengths.erase(first, last);
  if (run.engine) plan_windows(run);
  for (const std::string& split : options.splits)
    if (std::ranges::find(eval::sprite_splits(), split) == eval::sprite_splits().end())
      throw UsageError(detail::concat(
          "--splits: sprites have training, new_wordings, new_pairs and new_both, got ", split));
  for (const std::string& split : eval::sprite_splits())  // in their order, each once
    if (options.splits.empty() || std::ranges::find(options.splits, split) != options.splits.end())
      run.splits.push_back(split);
  run.files = files_of(options, run.parts.lengths.size() > 1);
  check_files(run.files, options.yes);
  run.questions = eval::sprite_questions(run.splits, static_cast<std::uint64_t>(options.seed), run.count());
}

// ---- the sheet ----

std::string row_label(const SpriteQuestion& question, std::int64_t length, bool several,
                      const SpriteAgreement& agreement) {
  std::string text = eval::sprite_splits()[static_cast<std::size_t>(question.split)];
  if (several) text += detail::concat(", ", length, " x");
  return text + what_is_wrong(agreement);
}

// The first clips of each split, of the shortest and of the longest.
void keep_for_sheet(SpritesRun& run, Questions questions, const at::Tensor& clips, std::size_t length,
                    const std::vector<SpriteAgreement>& agreements) {
  constexpr std::int64_t most = 4, most_columns = 16;
  const std::vector<std::int64_t>& lengths = run.parts.lengths;
  if (run.files.sheet.empty() || (length != 0 && length + 1 != lengths.size())) return;
  for (std::size_t i = 0; i < questions.size(); ++i)
    if (questions[i].number < most)
      run.sheet.add(clips[static_cast<std::int64_t>(i)], most_columns, questions[i].caption,
                    row_label(questions[i], lengths[length], lengths.size() > 1, agreements[i]));
}

// ---- the work ----

// Batches of nearly one size.
struct Batches {
  std::int64_t all, batches;
  Batches(std::int64_t all, std::int64_t most) : all(all), batches((all + most - 1) / most) {}
  std::int64_t begin(std::int64_t i) const { return i * all / batches; }
  Questions of(const SpritesRun& run, std::int64_t i) const {
    return Questions(run.questions)
        .subspan(static_cast<std::size_t>(begin(i)), static_cast<std::size_t>(begin(i + 1) - begin(i)));
  }
};

eval::ScoreTable judge_drawings(SpritesRun& run) {
  eval::ScoreTable table(run.splits, run.parts.lengths);
  const Batches batches(std::ssize(run.questions), 64);
  const std::int64_t lengths = std::ssize(run.parts.lengths), total = lengths * batches.all;
  Watch watch(run.signals, run.options.quiet, "judging drawings", "clip");
  watch(0, total);
  for (std::int64_t i = 0; i < batches.batches; ++i)
    for (std::size_t length = 0; length < run.parts.lengths.size(); ++length) {
      const Questions questions = batches.of(run, i);
      const at::Tensor clips = eval::draw_part(questions, run.format, run.parts.first(length));
      const std::int64_t before =
          batches.begin(i) * lengths + static_cast<std::int64_t>(length) * std::ssize(questions);
      const std::vector<SpriteAgreement> agreements = eval::judge_part(
          questions, clips, run.format.fps, [&](std::int64_t done) { watch(before + done, total); });
      table.add(length, questions, agreements);
      if (!run.engine) keep_for_sheet(run, questions, clips, length, agreements);
    }
  return table;
}

// The clips of these questions, each with its own caption and noise, block by block where the model allows
// it.
generate::Job job_of(const SpritesRun& run, Questions questions, std::int64_t window) {
  const models::NetworkConfig& network = run.engine->config().network;
  Request request = run.request;
  request.frames = std::to_string(run.parts.last());
  request.stream = network.block_causal();
  if (window != network.window) request.window = window;
  generate::Job job = run.engine->resolve(request);
  job.items.resize(questions.size(), job.items.front());
  for (std::size_t i = 0; i < questions.size(); ++i) {
    job.items[i].prompt = {questions[i].caption};
    job.items[i].seed = {static_cast<std::int64_t>(run.seed_of(questions[i]))};
  }
  return job;
}

std::int64_t batch_of(const SpritesRun& run) {
  if (run.options.batch > 0) return run.options.batch;
  return run.engine->device().starts_with("cuda") ? 256 : 16;
}

eval::PartKeeper make_clips(SpritesRun& run, Questions questions, std::int64_t window,
                            const std::function<void(std::int64_t, std::int64_t)>& on_evaluation) {
  eval::PartKeeper kept(run.parts, std::ssize(questions), run.format.height, run.format.width);
  generate::Observer observer;
  observer.stop = &run.signals.asked();
  observer.on_evaluation = on_evaluation;
  observer.on_frames = [&](generate::Frames&& frames) {
    kept.take(frames.item, frames.first, frames.images);
  };
  run_share(*run.engine, job_of(run, questions, window), batch_of(run), observer);
  for (std::size_t i = 0; i < run.parts.lengths.size(); ++i) add_up(kept.part(i));
  return kept;
}

eval::ScoreTable judge_clips(SpritesRun& run, std::size_t window) {
  eval::ScoreTable table(run.splits, run.parts.lengths);
  const Batches batches(std::ssize(run.questions), batch_of(run));
  const std::string what =
      run.windows.size() > 1 ? "sampling, " + window_text(run.windows[window]) : std::string("sampling");
  Watch watch(run.signals, run.options.quiet, what, "evaluation");
  for (std::int64_t i = 0; i < batches.batches; ++i) {
    const Questions questions = batches.of(run, i);
    const eval::PartKeeper kept = make_clips(
        run, questions, run.windows[window],
        [&](std::int64_t done, std::int64_t total) { watch(i * total + done, batches.batches * total); });
    if (!parallel::world().first()) continue;
    for (std::size_t length = 0; length < run.parts.lengths.size(); ++length) {
      const std::vector<SpriteAgreement> agreements =
          eval::judge_part(questions, kept.part(length), run.format.fps, [&](std::int64_t) {
            if (run.signals.asked().load(std::memory_order_relaxed)) throw generate::Stopped();
          });
      table.add(length, questions, agreements);
      if (window == 0) keep_for_sheet(run, questions, kept.part(length), length, agreements);
    }
  }
  return table;
}

eval::SpritesReport work(SpritesRun& run) {
  const bool judges = parallel::world().first();
  eval::SpritesReport report{judges ? judge_drawings(run) : eval::ScoreTable(run.splits, run.parts.lengths),
                             {}};
  for (std::size_t i = 0; run.engine && i < run.windows.size(); ++i)
    report.windows.push_back({run.windows[i], judge_clips(run, i)});
  return report;
}

// ---- what came of it ----

std::string heading(const SpritesRun& run) {
  std::string text =
      detail::concat(run.engine ? run.engine->name() : "drawings", " at ", run.format.width, "x",
                     run.format.height, ", ", run.format.frames, " frames, ", run.format.fps, " a second\n");
  text += detail::concat(run.splits.size(), " x ", grouped(run.count()), " clips, seed ", run.options.seed);
  if (run.engine) {
    text +=
        detail::concat(", ", steps_text(*run.request.sampler, *run.request.steps, *run.request.shift), ", ",
                       guidance_text(*run.request.cfg_scale, *run.request.cfg_from, *run.request.cfg_to));
    text += detail::concat("\n", *run.request.dtype, ", on ", run.engine->device());
    if (run.windows.size() == 1) text += ", " + window_text(run.windows.front());
  }
  return text + "\n\n";
}

std::string json_text(const SpritesRun& run, const eval::SpritesReport& report) {
  JsonObject result;
  result.add("what", run.options.what);
  if (run.engine) {
    add_model(result, *run.engine, run.request);
    result.add("windows", run.windows);
  }
  result.add("size", std::vector{run.format.width, run.format.height});
  result.add("frames", run.format.frames).add("fps", run.format.fps);
  result.add("count", run.count()).add("seed", run.options.seed);
  result.add("splits", run.splits).add("lengths", run.parts.lengths);
  add_sprites(result, report);
  return result.text();
}

void write_files(const SpritesRun& run, const eval::SpritesReport& report) {
  if (!run.files.text.empty()) write_text(run.files.text, heading(run) + sprites_text(report));
  if (!run.files.json.empty()) write_text(run.files.json, json_text(run, report) + "\n");
  if (!run.files.sheet.empty()) run.sheet.write(run.files.sheet);
  if (run.files.curve.empty()) return;
  write_text(run.files.curve,
             sprites_curve(
                 report, detail::concat(run.engine ? run.engine->name() : "drawings", ", ", run.format.frames,
                                        " frames of ", run.format.width, "x", run.format.height, ", ",
                                        grouped(std::ssize(run.questions)), " clips at each length")));
}

}  // namespace

int eval_sprites(const EvalOptions& options) {
  if (options.changes > 0) return eval_sprite_changes(options);
  const StopSignals signals;
  SpritesRun run{.options = options, .signals = signals};
  plan(run);
  return print_findings(options, signals, [&] {
    const eval::SpritesReport report = work(run);
    if (!parallel::world().first()) return Findings{};
    write_files(run, report);
    return Findings{heading(run) + sprites_text(report), json_text(run, report)};
  });
}

}  // namespace pom::cli
