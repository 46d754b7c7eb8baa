#include "pom/train/trainer.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

#include <ATen/Parallel.h>

#include "pom/base/build_info.h"
#include "pom/base/error.h"
#include "pom/generate/device.h"
#include "pom/io/atomic_file.h"
#include "pom/io/json_fields.h"
#include "pom/io/picture.h"
#include "pom/models/counts.h"
#include "pom/train/device.h"
#include "pom/train/learner.h"
#include "pom/train/model_folder.h"
#include "pom/train/run_folder.h"
#include "pom/train/schedule.h"

namespace pom::train {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t bad_steps_allowed = 5;  // in a row, before the run goes back to a checkpoint
constexpr std::int64_t rollbacks_allowed = 3;  // without a checkpoint in between
constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Sums since the last line of the log.
struct Stretch {
  double began = seconds_now();
  std::int64_t steps = 0;
  double loss = 0;
  std::vector<float> losses, times;

  void add(const StepResult& result) {
    if (!result.finite) return;
    ++steps;
    loss += result.loss;
    losses.insert(losses.end(), result.losses.begin(), result.losses.end());
    times.insert(times.end(), result.times.begin(), result.times.end());
  }
};

class Run {
 public:
  Run(const Recipe& recipe, const TrainOptions& options, const Watch& watch);
  RunResult train();

 private:
  void begin();
  void resume(const Checkpoint& checkpoint);
  void refuse_changes(const Checkpoint& checkpoint);
  void describe();
  void start_loader();
  bool steps(Progress& progress);
  void after_step(const StepResult& result, Progress& progress);
  void take_bad_step(const StepResult& result, Progress& progress);
  void roll_back(const StepResult& result, Progress& progress);
  void log_figures(const StepResult& result, Progress& progress);
  void validate(Progress& progress);
  void draw_sheet(Progress& progress);
  void save(Progress* sheet = nullptr);
  void say(const std::string& text, Progress* progress = nullptr);
  bool due(std::int64_t every) const { return every > 0 && state_.step % every == 0; }
  std::int64_t last() const {
    return last_step(recipe_.run.steps, {state_.cooldown_from, state_.cooldown_steps});
  }
  double seconds() const { return state_.seconds + seconds_now() - began_; }

  TrainOptions options_;
  Watch watch_;
  data::Split data_;
  Recipe recipe_;
  RunFolder folder_;
  std::optional<Learner> learner_;
  std::optional<RunLog> log_;
  std::unique_ptr<data::Loader> loader_;
  Prepared next_;  // what the next step computes, made ready during the one before
  State state_;
  std::int64_t saved_step_ = -1;
  Stretch stretch_;
  double began_ = seconds_now();
  RunResult result_;
};

Recipe completed(Recipe recipe, const data::Split& data) {
  complete_recipe(recipe, *data.training);
  return recipe;
}

Run::Run(const Recipe& recipe, const TrainOptions& options, const Watch& watch)
    : options_(options),
      watch_(watch),
      data_(data::open_dataset(recipe.data, static_cast<std::uint64_t>(recipe.run.seed))),
      recipe_(completed(recipe, data_)),
      folder_(options.folder, options.resume) {}

void Run::say(const std::string& text, Progress* progress) {
  if (log_) log_->message(text);
  if (progress)
    progress->say(text);
  else if (watch_.say)
    watch_.say(text);
}

// ---- where it starts ----

void Run::begin() {
  const at::Device device = generate::device_named(recipe_.run.device, "train: run");
  make_deterministic(device);
  learner_.emplace(recipe_, device);
  state_.seed = recipe_.run.seed;
  std::vector<std::string> damaged;
  std::optional<Checkpoint> checkpoint;
  if (options_.resume)
    checkpoint = newest_checkpoint(folder_.checkpoints(), [&](const fs::path& path, const std::string& why) {
      damaged.push_back(detail::concat("left out ", path.filename().string(), ": ", why));
    });
  if (checkpoint) refuse_changes(*checkpoint);
  log_.emplace(folder_.path(), checkpoint ? checkpoint->state.step : -1);
  for (const std::string& text : damaged) say(text);
  if (checkpoint)
    resume(*checkpoint);
  else if (options_.resume)
    say(detail::concat("no checkpoint in ", folder_.checkpoints().string(), ": starting from the beginning"));
  if (!checkpoint && !options_.init_from.empty())
    learner_->start_from(first_weights(options_.init_from, recipe_.network));
  if (options_.cooldown > 0 && state_.cooldown_from < 0) {
    state_.cooldown_from = state_.step;
    state_.cooldown_steps = options_.cooldown;
  }
  describe();
  start_loader();
  if (!checkpoint) save();  // so that a disk that takes no checkpoint is found before the work
}

void Run::refuse_changes(const Checkpoint& checkpoint) {
  const Recipe before = parse_recipe(checkpoint.recipe, "the checkpoint's recipe");
  std::string refused, allowed;
  for (const Change& change : changes(before, recipe_)) {
    const std::string text = detail::concat("\n  ", change.field, ": ", change.before, " -> ", change.after);
    (change.allowed ? allowed : refused) += text;
  }
  check(
      refused.empty(),
      "train: --resume: these fields have changed and may not, because the state of the run ",
      "would no longer mean the same:", refused,
      "\nthe network, the data's kind, size and validation, the diffusion, the codec, the seed and the ",
      "precision stay; everything else may change. A run that starts from these weights with another recipe ",
      "is --init-from ", folder_.model().string());
  if (!allowed.empty() && watch_.say) watch_.say("changed since the checkpoint:" + allowed);
}

void Run::resume(const Checkpoint& checkpoint) {
  learner_->restore(checkpoint);
  state_ = checkpoint.state;
  saved_step_ = state_.step;
  say(detail::concat("going on from step ", state_.step));
}

void Run::describe() {
  io::write_file_atomically(folder_.recipe(), recipe_text(recipe_));
  const BuildInfo& build = build_info();
  note_start(folder_.path(),
             detail::concat("{\"step\": ", state_.step, ", \"command\": ", io::json_quoted(options_.command),
                            ", \"version\": ", io::json_quoted(build.version),
                            ", \"build\": ", io::json_quoted(build_line()),
                            ", \"device\": ", io::json_quoted(device_text(learner_->device())),
                            ", \"parameters\": ", models::count_parameters(recipe_.network),
                            ", \"init_from\": ", io::json_quoted(options_.init_from.string()), "}"));
}

void Run::start_loader() {
  loader_.reset();
  loader_ = std::make_unique<data::Loader>(
      data_.training,
      data::LoaderOptions{.batch = recipe_.batch.size,
                          .workers = recipe_.data.workers,
                          .seed = static_cast<std::uint64_t>(state_.seed),
                          .start = state_.place,
                          .pinned = learner_->device().is_cuda(),
                          .on_broken = [this](const std::string& name, const std::string& why) {
                            say(detail::concat("skipped ", name, " (", loader_->broken(), " so far): ", why));
                          }});
}

// ---- the steps ----

RunResult Run::train() {
  if (recipe_.run.threads > 0) at::set_num_threads(static_cast<int>(recipe_.run.threads));
  begin();
  ProgressOptions options = watch_.progress;
  options.first = state_.step;
  Progress progress(recipe_.run.name, last(), watch_.sink, options);
  stretch_ = Stretch();
  began_ = seconds_now();
  const bool finished = steps(progress);
  if (saved_step_ != state_.step) save();
  if (finished) {
    progress.finish();
    result_.end = End::finished;
  }
  result_.state = state_;
  result_.state.seconds = seconds();
  result_.model = folder_.model();
  return result_;
}

// False where it was asked to leave early.
bool Run::steps(Progress& progress) {
  if (state_.step < last()) next_ = learner_->prepare(loader_->next(), state_.seed, state_.draws);
  while (state_.step < last()) {
    if (watch_.stop && watch_.stop->load()) {
      result_.end = End::stopped;
      return false;
    }
    if (options_.seconds > 0 && seconds_now() - began_ > options_.seconds) {
      result_.end = End::out_of_time;
      return false;
    }
    Prepared next;
    const StepResult result = learner_->step(
        next_, state_, [&] { next = learner_->prepare(loader_->next(), state_.seed, state_.draws + 1); });
    next_ = std::move(next);
    progress.set(state_.step);
    after_step(result, progress);
  }
  return true;
}

void Run::after_step(const StepResult& result, Progress& progress) {
  if (!result.finite) take_bad_step(result, progress);
  stretch_.add(result);
  const bool end = state_.step == last();
  if (due(recipe_.log.every) || end) log_figures(result, progress);
  if (due(recipe_.log.validate_every) || (end && recipe_.log.validate_every > 0)) validate(progress);
  const bool sheet = due(recipe_.log.sample_every) || (end && recipe_.log.sample_every > 0);
  if (due(recipe_.log.checkpoint_every) || sheet || end) save(sheet ? &progress : nullptr);
}

void Run::take_bad_step(const StepResult& result, Progress& progress) {
  say(detail::concat("step ", state_.step - 1, ": not finite, and skipped: first ", result.culprit, " (loss ",
                     result.loss, ", gradient norm ", result.norm, ")"),
      &progress);
  if (state_.bad_in_row >= bad_steps_allowed) roll_back(result, progress);
}

// The weights of the newest checkpoint, and the data and noise that come next: the same ones would only fail
// again.
void Run::roll_back(const StepResult& result, Progress& progress) {
  check(state_.rollbacks < rollbacks_allowed, "train: step ", state_.step, ": not finite ", bad_steps_allowed,
        " times in a row, and still after ", rollbacks_allowed, " returns to a checkpoint; first ",
        result.culprit, ". A lower optimizer.lr, a longer optimizer.warmup or precision fp32 may help");
  const std::optional<Checkpoint> checkpoint = newest_checkpoint(folder_.checkpoints(), [](auto&&...) {});
  check(checkpoint.has_value(), "train: step ", state_.step, ": not finite ", bad_steps_allowed,
        " times in a row, and no checkpoint to return to; first ", result.culprit);
  learner_->restore(*checkpoint);
  state_.step = checkpoint->state.step;
  state_.updates = checkpoint->state.updates;
  state_.bad_in_row = 0;
  ++state_.rollbacks;
  say(detail::concat("not finite ", bad_steps_allowed, " times in a row: back to the weights of step ",
                     state_.step, ", with the data that comes next"),
      &progress);
}

void Run::log_figures(const StepResult& result, Progress& progress) {
  const double now = seconds_now();
  Figures figures{.step = state_.step,
                  .skipped = state_.skipped,
                  .loss = stretch_.steps > 0 ? stretch_.loss / static_cast<double>(stretch_.steps) : nothing,
                  .rate = result.rate,
                  .norm = result.norm,
                  .pictures_per_second =
                      static_cast<double>(stretch_.steps * recipe_.batch.size) / (now - stretch_.began),
                  .seconds = seconds(),
                  .loss_by_time = loss_by_time(stretch_.losses, stretch_.times)};
  result_.loss = figures.loss;
  log_->figures(figures);
  char note[96];
  std::snprintf(note, sizeof note, "loss %.4f · %.*f pictures/s", figures.loss,
                figures.pictures_per_second < 100 ? 1 : 0, figures.pictures_per_second);
  progress.note(note);
  stretch_ = Stretch();
}

void Run::validate(Progress& progress) {
  if (!data_.validation || data_.validation->size() == 0) return;
  const ValidationResult result =
      learner_->validate(*data_.validation, static_cast<std::uint64_t>(state_.seed));
  result_.validation_loss = result.loss;
  log_->validation(state_.step, result);
  char text[96];
  std::snprintf(text, sizeof text, "step %lld: validation loss %.5f", static_cast<long long>(state_.step),
                result.loss);
  say(text, &progress);
}

// ---- what stays ----

// The checkpoint comes last: a run that is killed before it makes the model and the sheet again.
void Run::save(Progress* sheet) {
  Checkpoint checkpoint = learner_->snapshot(state_);
  checkpoint.state.seconds = seconds();
  if (saved_step_ >= 0 && state_.step > saved_step_) checkpoint.state.rollbacks = state_.rollbacks = 0;
  checkpoint.recipe = recipe_text(recipe_);
  write_model(folder_.model(), recipe_, data_.training->classes(), checkpoint.ema);
  if (sheet) draw_sheet(*sheet);
  write_checkpoint(folder_.checkpoints(), checkpoint);
  prune_checkpoints(folder_.checkpoints(), recipe_.log.keep);
  saved_step_ = state_.step;
}

void Run::draw_sheet(Progress& progress) {
  if (recipe_.data.kind == "latents") return;  // whose codec is not here
  const fs::path path = folder_.samples() / sheet_name(state_.step);
  const io::Image sheet = sample_sheet(folder_.model(), recipe_, learner_->device());
  io::write_picture(path, sheet);
  log_->sheet(state_.step, path, sheet.width, sheet.height);
  say(path.string(), &progress);
}

}  // namespace

RunResult train(const Recipe& recipe, const TrainOptions& options, const Watch& watch) {
  check_recipe(recipe, "train");
  return Run(recipe, options, watch).train();
}

}  // namespace pom::train
