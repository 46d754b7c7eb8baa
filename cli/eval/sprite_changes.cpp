// `pom eval sprites --changes N`: whether a stream becomes what a second prompt says, judged some time after
// the change, beside streams of that prompt alone and drawings of the same scenes.
#include "pom/eval/sprite_changes.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/zeros.h>

#include "cli/command.h"
#include "cli/eval/clip_sheet.h"
#include "cli/eval/eval.h"
#include "cli/eval/sprites_report.h"
#include "cli/output_names.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/io/picture.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using eval::SpriteAgreement, eval::SpriteQuestion;

struct ChangesRun {
  const EvalOptions& options;
  const StopSignals& signals;
  std::optional<generate::Engine> engine = {};  // none of drawings
  fs::path text = {}, json = {}, sheet_file = {};
  data::ClipFormat format = {};
  generate::Request request = {};
  eval::ChangeFrames frames = {};
  eval::ChangeQuestions questions = {};
  ClipSheet sheet = {};

  std::int64_t count() const { return options.changes; }
  std::span<const SpriteQuestion> after(std::int64_t first, std::int64_t number) const {
    return std::span(questions.after)
        .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(number));
  }
};

// ---- before the work ----

void refuse_others(const EvalOptions& options) {
  const auto refuse = [](bool given, const char* flag) {
    if (given) throw UsageError(detail::concat(flag, ": cannot be combined with --changes"));
  };
  refuse(options.count.has_value(), "--count");
  refuse(!options.splits.empty(), "--splits");
  refuse(options.frames.has_value(), "--frames");
  refuse(!options.lengths.empty(), "--lengths");
  refuse(!options.window.empty(), "--window");
}

// The prompt changes in the middle of a clip of the model's own length, with a block.
void plan_streams(ChangesRun& run) {
  run.engine.emplace(run.options.model, run.options.device);
  if (!run.engine->config().network.block_causal())
    throw UsageError(
        "--changes: expected a block-causal model, got one whose blocks all see each other, which makes no "
        "streams");
  as_usage([&] {
    generate::Request request = run.options.request;
    request.seed = {run.options.seed};
    request.prompt = {""};
    if (!run.options.size.empty()) generate::set_size(request, run.options.size);
    const generate::Job job = run.engine->resolve(request);
    run.request = job.first();
    run.format = {.width = *run.request.width, .height = *run.request.height, .fps = job.fps};
    const std::int64_t block = run.engine->block_frames();
    run.frames.change = std::max<std::int64_t>(1, job.frames / 2 / block) * block;
  });
}

void plan_changes(ChangesRun& run) {
  const EvalOptions& options = run.options;
  refuse_others(options);
  if (!options.drawings) plan_streams(run);
  if (options.drawings && !options.size.empty()) {
    generate::Request sized;
    as_usage([&] { generate::set_size(sized, options.size); });
    run.format.width = *sized.width, run.format.height = *sized.height;
  }
  if (run.format.width < 8 || run.format.height < 8)
    throw UsageError(
        detail::concat("expected frames of at least 8x8, got ", run.format.width, "x", run.format.height));
  run.format.frames = run.frames.judged;
  run.sheet_file = options.sheet;
  if (const fs::path folder = options.output; !folder.empty()) {
    run.text = folder / "report.txt";
    run.json = folder / "report.json";
    if (run.sheet_file.empty()) run.sheet_file = folder / "clips.png";
  }
  std::vector<fs::path> all;
  for (const fs::path& file : {run.text, run.json, run.sheet_file})
    if (!file.empty()) all.push_back(file);
  if (!run.sheet_file.empty()) as_usage([&] { io::check_picture_name(run.sheet_file); });
  check_outputs(all, options.yes);
  run.questions =
      eval::change_questions(static_cast<std::uint64_t>(options.seed), run.count(), run.frames, run.format);
}

// ---- the work ----

// clips (N, 3, all frames, H, W), of which the last before the change and what follows is shown.
void show_some(ChangesRun& run, std::int64_t first, const at::Tensor& clips,
               const std::vector<SpriteAgreement>& agreements) {
  constexpr std::int64_t most = 12, seen_before = 8, most_columns = 20;
  if (run.sheet_file.empty()) return;
  const std::int64_t from = std::max<std::int64_t>(0, run.frames.change - seen_before);
  for (std::int64_t i = 0; i < std::min(clips.size(0), most - first); ++i) {
    const auto at = static_cast<std::size_t>(first + i);
    run.sheet.add(
        clips[i].slice(1, from, run.frames.last()), most_columns,
        run.questions.before[at].caption + " -> " + run.questions.after[at].caption,
        detail::concat("stream ", first + i, what_is_wrong(agreements[static_cast<std::size_t>(i)])));
  }
}

// The drawings of both scenes of a stream, as the model should go on.
at::Tensor drawn_streams(const ChangesRun& run, std::int64_t first, std::int64_t number) {
  data::ClipFormat format = run.format;
  format.frames = run.frames.last();
  at::Tensor clips = at::zeros({number, 3, format.frames, format.height, format.width}, at::kByte);
  for (std::int64_t i = 0; i < number; ++i) {
    const auto at = static_cast<std::size_t>(first + i);
    const at::Tensor clip = clips[i];
    const std::vector<data::SpriteShot> shots = {{0, run.questions.before[at].scene},
                                                 {run.frames.change, run.questions.after[at].scene}};
    data::draw_shots(shots, format, {clip.data_ptr<std::uint8_t>(), static_cast<std::size_t>(clip.numel())});
  }
  return clips;
}

// Of streams from `first` on, into the scores.
std::vector<SpriteAgreement> judge_into(eval::ChangeScores& scores, const ChangesRun& run, std::int64_t first,
                                        const at::Tensor& clips) {
  const at::Tensor part = clips.slice(2, run.frames.first(), run.frames.last()).contiguous();
  const std::span<const SpriteQuestion> after = run.after(first, clips.size(0));
  std::vector<SpriteAgreement> agreements = eval::judge_part(after, part, run.format.fps, [&](std::int64_t) {
    if (run.signals.asked().load(std::memory_order_relaxed)) throw generate::Stopped();
  });
  scores.add(after, agreements, part);
  return agreements;
}

eval::ChangeScores judge_drawn_streams(ChangesRun& run) {
  constexpr std::int64_t batch = 64;
  eval::ChangeScores scores;
  Watch watch(run.signals, run.options.quiet, "judging drawings", "stream");
  watch(0, run.count());
  for (std::int64_t first = 0; first < run.count(); first += batch) {
    const std::int64_t number = std::min(batch, run.count() - first);
    const at::Tensor clips = drawn_streams(run, first, number);
    const std::vector<SpriteAgreement> agreements = judge_into(scores, run, first, clips);
    if (!run.engine) show_some(run, first, clips, agreements);
    watch(first + number, run.count());
  }
  return scores;
}

// Streams of these questions, each with noise of its own, with the change or of the second prompt alone.
generate::Job job_of_streams(const ChangesRun& run, std::int64_t first, std::int64_t number, bool changed) {
  generate::Request request = run.request;
  request.frames = std::to_string(run.frames.last());
  request.stream = true;
  generate::Job job = run.engine->resolve(request);
  job.items.resize(static_cast<std::size_t>(number), job.items.front());
  const std::int64_t block = run.frames.change / run.engine->block_frames();
  for (std::int64_t i = 0; i < number; ++i) {
    const auto at = static_cast<std::size_t>(first + i);
    const std::string& second = run.questions.after[at].caption;
    generate::Request& item = job.items[static_cast<std::size_t>(i)];
    item.prompt = {changed ? run.questions.before[at].caption : second};
    item.seed = {run.options.seed + first + i};
    if (changed) job.changes.push_back({.block = block, .prompt = second, .item = i});
  }
  return job;
}

at::Tensor made_streams(ChangesRun& run, std::int64_t first, std::int64_t number, bool changed,
                        std::int64_t batch, const std::function<void(std::int64_t, std::int64_t)>& tell) {
  at::Tensor clips =
      at::zeros({number, 3, run.frames.last(), run.format.height, run.format.width}, at::kByte);
  generate::Observer observer;
  observer.stop = &run.signals.asked();
  observer.on_evaluation = tell;
  observer.on_frames = [&](generate::Frames&& frames) {
    for (std::size_t f = 0; f < frames.images.size(); ++f)
      eval::put_frame(clips[frames.item], frames.first + static_cast<std::int64_t>(f), frames.images[f]);
  };
  run_share(*run.engine, job_of_streams(run, first, number, changed), batch, observer);
  add_up(clips);
  return clips;
}

eval::ChangeScores judge_streams(ChangesRun& run, bool changed) {
  const std::int64_t usual = run.engine->device().starts_with("cuda") ? 256 : 16;
  const std::int64_t most = run.options.batch > 0 ? run.options.batch : usual;
  const std::int64_t batches = (run.count() + most - 1) / most;
  eval::ChangeScores scores;
  Watch watch(run.signals, run.options.quiet, changed ? "sampling, with the change" : "sampling, without it",
              "evaluation");
  for (std::int64_t b = 0; b < batches; ++b) {
    const std::int64_t first = b * run.count() / batches, number = (b + 1) * run.count() / batches - first;
    const at::Tensor clips = made_streams(
        run, first, number, changed, most,
        [&](std::int64_t done, std::int64_t total) { watch(b * total + done, batches * total); });
    if (!parallel::world().first()) continue;
    const std::vector<SpriteAgreement> agreements = judge_into(scores, run, first, clips);
    if (changed) show_some(run, first, clips, agreements);
  }
  return scores;
}

eval::ChangesReport judge_all(ChangesRun& run) {
  eval::ChangesReport report;
  if (parallel::world().first()) report.drawings = judge_drawn_streams(run);
  if (!run.engine) return report;
  report.changed = judge_streams(run, true);
  report.alone = judge_streams(run, false);
  return report;
}

// ---- what came of it ----

std::string changes_heading(const ChangesRun& run) {
  std::string text = detail::concat(run.engine ? run.engine->name() : "drawings", " at ", run.format.width,
                                    "x", run.format.height, ", ", run.format.fps, " frames a second\n");
  text += detail::concat(grouped(run.count()), " streams, seed ", run.options.seed,
                         "; the prompt changes at frame ", run.frames.change, ", frames ", run.frames.first(),
                         " to ", run.frames.last() - 1, " are judged\n");
  if (run.engine)
    text += detail::concat(steps_text(*run.request.sampler, *run.request.steps, *run.request.shift), ", ",
                           guidance_text(*run.request.cfg_scale, *run.request.cfg_from, *run.request.cfg_to),
                           "\n", *run.request.dtype, ", on ", run.engine->device(), ", ",
                           window_text(run.engine->config().network.window), "\n");
  return text + "\n";
}

struct Row {
  const char* name;
  const eval::ChangeScores* scores;
};

std::vector<Row> rows_of(const ChangesRun& run, const eval::ChangesReport& report) {
  if (!run.engine) return {{"drawings", &report.drawings}};
  return {{"changed", &report.changed}, {"alone", &report.alone}, {"drawings", &report.drawings}};
}

std::string changes_text(const ChangesRun& run, const eval::ChangesReport& report) {
  std::string text = score_head();
  const std::vector<Row> rows = rows_of(run, report);
  const auto row_start = [&](const Row& row, const char* name) {
    char label[32];
    std::snprintf(label, sizeof label, "%-14s%-10s", &row == &rows.front() ? name : "", row.name);
    return std::string(label);
  };
  const auto group = [&](const char* ground, const auto& scores_of) {
    for (const Row& row : rows)
      text += score_row(&row == &rows.front() ? ground : "", row.name, scores_of(*row.scores));
  };
  group("ground named", [](const eval::ChangeScores& s) { return s.named; });
  group("not named", [](const eval::ChangeScores& s) { return s.unnamed; });
  group("all", [](const eval::ChangeScores& s) { return s.all(); });
  for (const Row& row : rows) {
    const eval::SpriteScores all = row.scores->all();
    text += detail::concat(row_start(row, "both"), rate_text(all.kinds_and_hues, all.clips),
                           " shape and colour\n");
  }
  for (const Row& row : rows) {
    const eval::ChangeScores& s = *row.scores;
    text += detail::concat(row_start(row, "ground"), rate_text(s.named_grounds, s.named.clips), " named, ",
                           rate_text(s.unnamed_grounds, s.unnamed.clips), " not\n");
  }
  for (const Row& row : rows)
    text += misfit_row(&row == &rows.front() ? "misfit" : "", row.name, row.scores->all());
  return text;
}

std::string changes_json(const ChangesRun& run, const eval::ChangesReport& report) {
  JsonObject result;
  result.add("what", run.options.what);
  if (run.engine) add_model(result, *run.engine, run.request);
  result.add("size", std::vector{run.format.width, run.format.height}).add("fps", run.format.fps);
  result.add("changes", run.count()).add("seed", run.options.seed);
  result.add("change_frame", run.frames.change);
  result.add("judged_frames", std::vector{run.frames.first(), run.frames.last() - 1});
  for (const Row& row : rows_of(run, report)) {
    JsonObject scores;
    const auto add = [&](const char* ground, const eval::SpriteScores& of, std::int64_t grounds) {
      JsonObject one;
      add_scores(one, of);
      add_rate(one, "ground", grounds, of.clips);
      scores.add(ground, one);
    };
    add("named", row.scores->named, row.scores->named_grounds);
    add("unnamed", row.scores->unnamed, row.scores->unnamed_grounds);
    add("all", row.scores->all(), row.scores->grounds());
    result.add(row.name, scores);
  }
  return result.text();
}

}  // namespace

int eval_sprite_changes(const EvalOptions& options) {
  const StopSignals signals;
  ChangesRun run{.options = options, .signals = signals};
  plan_changes(run);
  return print_findings(options, signals, [&] {
    const eval::ChangesReport report = judge_all(run);
    if (!parallel::world().first()) return Findings{};
    const Findings findings{changes_heading(run) + changes_text(run, report), changes_json(run, report)};
    if (!run.text.empty()) write_text(run.text, findings.text);
    if (!run.json.empty()) write_text(run.json, findings.json + "\n");
    if (!run.sheet_file.empty()) run.sheet.write(run.sheet_file);
    return findings;
  });
}

}  // namespace pom::cli
