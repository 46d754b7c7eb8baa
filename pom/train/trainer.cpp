// The loop of a run and everything around it: where it starts, what is due after a step, what it leaves.
#include "pom/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <optional>
#include <set>
#include <utility>

#include <ATen/Parallel.h>

#include "pom/base/build_info.h"
#include "pom/base/error.h"
#include "pom/generate/device.h"
#include "pom/io/atomic_file.h"
#include "pom/io/json_fields.h"
#include "pom/io/picture.h"
#include "pom/io/sha256.h"
#include "pom/train/device.h"
#include "pom/train/encoders.h"
#include "pom/train/export.h"
#include "pom/train/learner.h"
#include "pom/train/model_folder.h"
#include "pom/train/refusal.h"
#include "pom/train/run_folder.h"
#include "pom/train/schedule.h"

namespace pom::train {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t bad_steps_allowed = 5;      // in a row, before the run goes back to a checkpoint
constexpr std::int64_t rollbacks_allowed = 3;      // without a checkpoint in between
constexpr auto patience = std::chrono::hours(12);  // with the first rank, while it draws or writes

// Sums since the last line of the log, or the last checkpoint: what a resumed run has not seen is not in
// them.
struct Stretch {
  double began = steady_seconds();
  std::int64_t steps = 0;
  double loss = 0;
  LossByTime by_time;

  void add(const StepResult& result) {
    if (!result.finite) return;
    ++steps;
    loss += result.loss;
    by_time.add(result.losses, result.times);
  }
};

class Run {
 public:
  Run(const Recipe& recipe, const TrainOptions& options, const Watch& watch);
  RunResult train();

 private:
  void begin();
  void take_up(const at::Device& device);
  std::optional<Checkpoint> find_checkpoint();
  void refuse_options(const std::optional<Checkpoint>& checkpoint) const;
  void refuse_changes(const Checkpoint& checkpoint);
  void compare_data(const State& saved);
  void refuse_earlier_end(const State& saved) const;
  void start(const std::optional<Checkpoint>& checkpoint, const at::Device& device);
  void open_log();
  void tell_validation();
  void describe();
  void start_loader();
  bool steps();
  void after_step(const StepResult& result);
  void take_bad_step(const StepResult& result);
  void roll_back(const std::string& why);
  void log_figures(const StepResult& result);
  void validate();
  void draw_sheet();
  void save(bool sheet = false);
  void save_here(const Checkpoint& checkpoint, bool sheet);
  void finish_writing();
  Checkpoint snapshot();
  void save_model(const Checkpoint& checkpoint);
  void save_checkpoint(const Checkpoint& checkpoint);
  bool begins() const { return !options_.resume; }  // in its folder; from a checkpoint perhaps
  bool leads() const { return ranks_.first(); }
  std::string from_first(const std::string& text) const {
    return ranks_.gather_text(leads() ? text : "").front();
  }
  bool first_says(bool yes) const { return !from_first(yes ? "yes" : "").empty(); }
  bool has_to_leave();
  void say(const std::string& text);
  bool due(std::int64_t every) const { return every > 0 && state_.step % every == 0; }
  std::int64_t last() const { return last_of(state_); }
  std::int64_t last_of(const State& state) const {
    return last_step(recipe_.run.steps, {state.cooldown_from, state.cooldown_steps});
  }
  double seconds() const { return state_.seconds + steady_seconds() - began_; }

  TrainOptions options_;
  parallel::Ranks ranks_;
  Watch watch_;
  data::Split data_;
  Recipe recipe_;
  std::optional<RunFolder> folder_;  // of the first rank, as the log is
  std::optional<Learner> learner_;
  std::optional<RunLog> log_;
  Progress* progress_ = nullptr;     // while there is one
  std::vector<std::string> unsaid_;  // before the log is there
  std::set<std::string> broken_;     // validation examples that were told
  std::unique_ptr<data::Loader> loader_;
  Prepared next_;  // what the next step computes, made ready during the one before
  State state_;
  std::int64_t saved_step_ = -1;
  Stretch stretch_;
  double began_ = steady_seconds();
  double waited_ = 0;  // for others, by the last line of the log
  RunResult result_;
  std::future<void> writing_;  // what the first of several ranks writes while all go on
};

Recipe completed(Recipe recipe, const data::Split& data) {
  complete_recipe(recipe, *data.training, latent_factor(recipe));
  return recipe;
}

Run::Run(const Recipe& recipe, const TrainOptions& options, const Watch& watch)
    : options_(options),
      ranks_(options.ranks),
      watch_(watch),
      data_(open_data(recipe)),
      recipe_(completed(recipe, data_)) {}

void Run::say(const std::string& text) {
  if (!leads()) {
    if (watch_.say) watch_.say(detail::concat("rank ", ranks_.rank(), ": ", text));
    return;
  }
  if (!log_) {
    unsaid_.push_back(text);
    return;
  }
  log_->message(text);
  if (progress_)
    progress_->say(text);
  else if (watch_.say)
    watch_.say(text);
}

// ---- where it starts ----

// Of files at most a tenth is held back, whatever the recipe says: the default suits large folders.
void Run::tell_validation() {
  const std::int64_t wanted = recipe_.data.validation, held = data_.validation ? data_.validation->size() : 0;
  if (held < wanted)
    say(detail::concat("data.validation: ", held, " of ", held + data_.training->size(),
                       " examples held out (a tenth), not ", wanted, " as in the recipe"));
}

// Before anything else is sent: tensors of other sizes would end the process.
void require_same_run(const parallel::Ranks& ranks, const Recipe& recipe) {
  if (ranks.alone()) return;
  ranks.set_limit(std::chrono::milliseconds(static_cast<std::int64_t>(recipe.parallel.timeout * 1000)));
  ranks.require_same("train: the build of libpom", build_line());
  const std::vector<std::string> all = ranks.gather_text(recipe_text(recipe));
  if (std::ranges::all_of(all, [&](const std::string& other) { return other == all[0]; })) return;
  std::string others;  // the lines that differ say more than two recipes
  for (std::size_t r = 1; r < all.size(); ++r)
    for (const Change& change : changes(parse_recipe(all[0], "rank 0"), parse_recipe(all[r], "another rank")))
      others += detail::concat("\n  ", change.field, ": ", change.before, " on rank 0, ", change.after,
                               " on rank ", r);
  fail("train: the recipe: expected the same on all ranks, got", others);
}

// A folder that is not shared stays with its machine, and torchrun may number the ranks anew: the first would
// begin at an earlier step, or from nothing, and nobody would notice.
void refuse_folder_elsewhere(const parallel::Ranks& ranks, const TrainOptions& options) {
  if (ranks.alone() || options.launch.empty()) return;
  const bool mine = options.relaunched && was_launched_by(options.folder, options.launch);
  const std::int64_t here = mine ? newest_step(options.folder / "checkpoints") : -1;
  const std::vector<std::string> all = ranks.gather_text(std::to_string(here));
  for (std::size_t r = 1; r < all.size(); ++r)
    refuse_unless(std::stoll(all[r]) <= std::stoll(all[0]), "train: ", options.folder.string(), ": rank ", r,
                  " finds this run there at step ", all[r],
                  ", and the first rank, which has to go on from it, ",
                  std::stoll(all[0]) < 0 ? "finds none" : "finds it at step " + all[0],
                  ": expected a folder that all machines share, or the same machine first (torchrun sorts "
                  "them by their names)");
}

// A new folder is made once there is nothing left to refuse. Its first checkpoint is the first thing in it,
// so that a run that is killed sooner can begin there again, and later go on.
void Run::begin() {
  require_same_run(ranks_, recipe_);
  refuse_folder_elsewhere(ranks_, options_);
  options_.resume = first_says(options_.resume);
  const at::Device device = generate::device_named(recipe_.run.device, "train: run");
  make_deterministic(device);
  if (leads() && !begins()) folder_.emplace(options_.folder, true);
  if (leads()) tell_validation();
  take_up(device);
  if (leads() && begins()) {
    folder_.emplace(options_.folder, false);
    note_launch(folder_->path(), options_.launch);
  }
  if (leads() && !learner_->division().why_not.empty()) say(learner_->division().why_not);
  // At the start of a run, so that a disk that takes no checkpoint is found before the work; and at that of a
  // cooldown, which a process that is killed must not forget.
  if (begins() || options_.cooldown > 0) save_checkpoint(snapshot());
  if (leads()) {
    open_log();
    describe();
  }
  start_loader();
  if (first_says(leads() && folder_->model_step() < state_.step)) save_model(snapshot());
}

void Run::take_up(const at::Device& device) {
  std::optional<Checkpoint> checkpoint;
  if (leads()) {
    checkpoint = find_checkpoint();
    refuse_options(checkpoint);
    if (checkpoint) refuse_changes(*checkpoint);
  }
  start(checkpoint, device);
}

// The one to go on from; nothing for a run that begins.
std::optional<Checkpoint> Run::find_checkpoint() {
  if (!options_.from.empty()) return read_checkpoint(options_.from);
  if (!options_.resume) return std::nullopt;
  std::string damaged;
  std::optional<Checkpoint> found =
      newest_checkpoint(folder_->checkpoints(), [&](const fs::path& path, const std::string& why) {
        damaged += detail::concat("\n  ", path.filename().string(), ": ", why);
        say(detail::concat("skipped ", path.filename().string(), ": ", why));
      });
  check(found.has_value(), "train: --resume: none of the checkpoints in ", folder_->checkpoints().string(),
        " is intact:", damaged, "\na new run can start from the weights of the model: --init-from ",
        folder_->model().string(), " -o ANOTHER");
  return found;
}

void Run::refuse_options(const std::optional<Checkpoint>& checkpoint) const {
  refuse_unless(!checkpoint || options_.init_from.empty(),
                "train: --init-from: for a new run, but this one continues from step ",
                checkpoint ? checkpoint->state.step : 0);
  if (options_.cooldown == 0) return;
  refuse_unless(checkpoint.has_value(), "train: --cooldown: expected a checkpoint to begin at, got none");
  const State& state = checkpoint->state;
  refuse_unless(state.cooldown_from < 0,
                "train: --cooldown: expected a run that has none, got one that cools down from step ",
                state.cooldown_from, " over ", state.cooldown_steps,
                " steps; --resume alone continues it, and --from takes an earlier checkpoint");
}

void Run::refuse_changes(const Checkpoint& checkpoint) {
  const Recipe before = parse_recipe(checkpoint.recipe, "the checkpoint's recipe");
  std::string refused, allowed;
  for (const Change& change : changes(before, recipe_)) {
    const std::string text = detail::concat("\n  ", change.field, ": ", change.before, " -> ", change.after);
    (change.allowed ? allowed : refused) += text;
  }
  refuse_unless(
      refused.empty(), "train: ", begins() ? "--from" : "--resume",
      ": these fields have changed and may not, because the state of the run would no longer mean the same:",
      refused,
      "\nthe network, the data's kind, size and validation, the diffusion, the codec, the text encoder, the "
      "optimizer's kind, the seed and the precision stay; everything else may change. A run that starts from "
      "these weights with another recipe is --init-from ",
      folder_ ? folder_->model().string() : "DIR");
  if (!allowed.empty()) say("changed since the checkpoint:" + allowed);
  compare_data(checkpoint.state);
  if (!begins()) refuse_earlier_end(checkpoint.state);
}

void Run::compare_data(const State& saved) {
  refuse_unless(saved.classes == hash_of_classes(data_.training->classes()),
                "train: ", begins() ? "--from" : "--resume",
                ": the classes of the data have other names, or another order, than when the run began");
  if (saved.examples != data_.training->size())
    say(detail::concat("the data has ", data_.training->size(), " examples and had ", saved.examples,
                       "; their order changes from here on"));
}

// A run whose model would never be written, because that of a later step stays.
void Run::refuse_earlier_end(const State& saved) const {
  State state = saved;
  if (options_.cooldown > 0) state.cooldown_from = state.step, state.cooldown_steps = options_.cooldown;
  const std::int64_t end = last_of(state), made = folder_->model_step();
  refuse_unless(end <= state.step || end >= made, "train: --resume: ", folder_->model().string(),
                " holds the weights of step ", made, ", and a run that continues from step ", state.step,
                " to step ", end, " would put earlier ones in their place: expected an end at step ", made,
                " or later (run.steps), or another folder (--from ",
                (folder_->checkpoints() / checkpoint_name(state.step)).string(), " -o DIR)");
}

// The first rank has read what there is; all get it from there.
void Run::start(const std::optional<Checkpoint>& checkpoint, const at::Device& device) {
  FirstWeights first;
  if (leads() && !checkpoint && !options_.init_from.empty())
    first = first_weights(options_.init_from, recipe_);
  State saved = checkpoint ? checkpoint->state : State{};
  const std::string words = from_first(checkpoint ? saved.words : first.words);
  learner_.emplace(recipe_, device, words, ranks_);
  if (first_says(checkpoint.has_value())) {
    io::read_json(from_first(io::write_json(saved)), state_, "the state of the first rank");
    learner_->restore(checkpoint ? *checkpoint : Checkpoint{});
    if (options_.from.empty()) saved_step_ = state_.step;
  } else {
    state_.seed = recipe_.run.seed;
    if (first_says(!first.weights.empty())) learner_->start_from(first.weights);
  }
  state_.examples = data_.training->size();
  state_.classes = hash_of_classes(data_.training->classes());
  if (options_.cooldown > 0) state_.cooldown_from = state_.step, state_.cooldown_steps = options_.cooldown;
}

void Run::open_log() {
  const bool goes_on = options_.resume || !options_.from.empty();
  log_.emplace(folder_->path(), goes_on ? state_.step : -1);
  log_->message(detail::concat(recipe_.run.name, ": ", learner_->parameters().count(), " parameters on ",
                               device_text(learner_->device())));
  for (const std::string& text : std::exchange(unsaid_, {})) say(text);
  if (goes_on) say(detail::concat("resuming from step ", state_.step));
  if (folder_->model_step() > state_.step)
    say(detail::concat(folder_->model().string(), " keeps the weights of step ", folder_->model_step(),
                       " until then"));
}

void Run::describe() {
  const std::string text = recipe_text(recipe_);
  io::write_file_atomically(folder_->recipe(), text);
  log_->recipe(state_.step, text);
  const BuildInfo& build = build_info();
  note_start(folder_->path(),
             detail::concat("{\"step\": ", state_.step, ", \"command\": ", io::json_quoted(options_.command),
                            ", \"version\": ", io::json_quoted(build.version),
                            ", \"build\": ", io::json_quoted(build_line()), ", \"device\": ",
                            io::json_quoted(device_text(learner_->device())), ", \"ranks\": ", ranks_.size(),
                            ", \"parameters\": ", learner_->parameters().count(),
                            ", \"init_from\": ", io::json_quoted(options_.init_from.string()), "}"));
}

void Run::start_loader() {
  loader_.reset();
  loader_ = std::make_unique<data::Loader>(
      data_.training,
      data::LoaderOptions{.batch = recipe_.batch.size,
                          .rows = learner_->division().rows(),
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
  progress_ = &progress;
  stretch_ = Stretch();
  began_ = steady_seconds();
  const bool finished = steps();
  if (saved_step_ != state_.step && learner_->is_finite()) save();
  finish_writing();
  ranks_.meet(patience);  // none leaves while the first still writes what the others' time went into
  if (finished) progress.finish();
  progress_ = nullptr;
  result_.state = state_;
  result_.state.seconds = seconds();
  result_.model = options_.folder / "model";
  return result_;
}

// False where it was asked to leave early.
bool Run::steps() {
  if (state_.step < last()) next_ = learner_->prepare(loader_->next(), state_.seed, state_.draws);
  while (state_.step < last()) {
    if (has_to_leave()) return false;
    Prepared next;
    const StepResult result = learner_->step(
        next_, state_, [&] { next = learner_->prepare(loader_->next(), state_.seed, state_.draws + 1); });
    next_ = std::move(next);
    after_step(result);
    progress_->set(state_.step);
  }
  return true;
}

// Whoever is asked to stop, all do, after the same step.
bool Run::has_to_leave() {
  const bool asked = watch_.stop && watch_.stop->load(),
             late = options_.seconds > 0 && steady_seconds() - began_ > options_.seconds;
  const std::vector<std::int64_t> agreed = ranks_.largest({asked, late});
  if (agreed[0] > 0) result_.end = End::stopped;
  if (agreed[0] == 0 && agreed[1] > 0) result_.end = End::out_of_time;
  return agreed[0] > 0 || agreed[1] > 0;
}

void Run::after_step(const StepResult& result) {
  if (!result.finite) return take_bad_step(result);
  stretch_.add(result);
  const bool end = state_.step == last();
  const bool sheet = due(recipe_.log.sample_every) || (end && recipe_.log.sample_every > 0);
  const bool saves = due(recipe_.log.checkpoint_every) || sheet || end;
  if (saves && !learner_->is_finite()) return roll_back("the weights, after a finite step");
  if (due(recipe_.log.every) || end) log_figures(result);
  if (due(recipe_.log.validate_every) || (end && recipe_.log.validate_every > 0)) validate();
  if (saves) save(sheet);
}

// Nothing is logged or saved at such a step: a checkpoint is of a state that works.
void Run::take_bad_step(const StepResult& result) {
  say(detail::concat("step ", state_.step - 1, ": not finite, skipped; first in ", result.culprit, " (loss ",
                     result.loss, ", gradient norm ", result.norm, ")"));
  if (state_.bad_in_row >= bad_steps_allowed || state_.step == last()) roll_back(result.culprit);
}

// The weights of a checkpoint, each time of an earlier one, and the data and noise that come next: the same
// ones would only fail again.
void Run::roll_back(const std::string& why) {
  check(state_.rollbacks < rollbacks_allowed, "train: step ", state_.step, ": still not finite after ",
        rollbacks_allowed, " rollbacks; first in ", why,
        ". A lower optimizer.lr, a longer optimizer.warmup or run.precision fp32 may help");
  finish_writing();
  std::optional<Checkpoint> checkpoint;
  if (leads())
    checkpoint = newest_checkpoint(
        folder_->checkpoints(),
        [&](const fs::path& path, const std::string& reason) {
          say(detail::concat("skipped ", path.filename().string(), ": ", reason));
        },
        state_.rollbacks);
  check(first_says(checkpoint.has_value()), "train: step ", state_.step,
        ": not finite, and no checkpoint to roll back to; first in ", why);
  if (!checkpoint) checkpoint.emplace();
  io::read_json(from_first(io::write_json(checkpoint->state)), checkpoint->state,
                "the state of the first rank");
  learner_->restore(*checkpoint);
  state_.step = checkpoint->state.step;
  state_.updates = checkpoint->state.updates;
  state_.bad_in_row = 0;
  ++state_.rollbacks;
  stretch_ = Stretch();
  if (!leads()) return;
  log_.emplace(folder_->path(), state_.step);
  say(detail::concat("too many non-finite steps: rolled back to step ", state_.step,
                     ", continuing with the next data"));
}

void Run::log_figures(const StepResult& result) {
  const double steps = static_cast<double>(stretch_.steps);
  Figures figures{.step = state_.step,
                  .skipped = state_.skipped,
                  .loss = stretch_.loss / steps,
                  .rate = result.rate,
                  .norm = result.norm,
                  .pictures_per_second =
                      steps * static_cast<double>(recipe_.batch.size) / (steady_seconds() - stretch_.began),
                  .seconds = seconds(),
                  .ranks = ranks_.size(),
                  .loss_by_time = stretch_.by_time.means()};
  result_.loss = figures.loss;
  const double waited = learner_->waited() - std::exchange(waited_, learner_->waited());
  figures.waiting = waited / (steady_seconds() - stretch_.began);
  stretch_ = Stretch();
  if (!leads()) return;
  log_->figures(figures);
  char note[96];
  std::snprintf(note, sizeof note, "loss %.4f · %.*f %s/s", figures.loss,
                figures.pictures_per_second < 100 ? 1 : 0, figures.pictures_per_second,
                recipe_.data.moving() && recipe_.data.frames > 1 ? "clips" : "images");
  progress_->note(note);
}

void Run::validate() {
  if (!data_.validation || data_.validation->size() == 0) return;
  const double began = steady_seconds();
  const ValidationResult result =
      learner_->validate(*data_.validation, static_cast<std::uint64_t>(state_.seed));
  for (const std::string& text : result.broken)
    if (broken_.insert(text).second) say(detail::concat("skipped ", text, " (held out for validation)"));
  result_.validation_loss = result.loss;
  stretch_.began += steady_seconds() - began;
  if (!leads()) return;
  log_->validation(state_.step, result);
  char text[96];
  std::snprintf(text, sizeof text, "step %lld: validation loss %.5f", static_cast<long long>(state_.step),
                result.loss);
  say(text);
}

// ---- what stays ----

// Several ranks go on as soon as the first has a copy; with a sheet, which is drawn on the device, they wait.
void Run::save(bool sheet) {
  finish_writing();
  const Checkpoint checkpoint = snapshot();
  if (leads() && !ranks_.alone() && !sheet)
    writing_ = std::async(std::launch::async, [this, checkpoint] {
      save_model(checkpoint);
      save_checkpoint(checkpoint);
    });
  else if (leads())
    save_here(checkpoint, sheet);
  if (sheet) ranks_.meet(patience);
  saved_step_ = state_.step;
  stretch_ = Stretch();
}

// The checkpoint comes last: a run that is killed before it makes the model and the sheet again.
void Run::save_here(const Checkpoint& checkpoint, bool sheet) {
  save_model(checkpoint);
  if (sheet) draw_sheet();
  save_checkpoint(checkpoint);
}

// What went wrong there is thrown here.
void Run::finish_writing() {
  if (writing_.valid()) writing_.get();
}

Checkpoint Run::snapshot() {
  if (state_.bad_in_row == 0) state_.rollbacks = 0;
  Checkpoint checkpoint = learner_->snapshot(state_);
  checkpoint.state.seconds = seconds();
  checkpoint.recipe = recipe_text(recipe_);
  return checkpoint;
}

// A later one stays where the run went back, to an earlier checkpoint than its newest.
void Run::save_model(const Checkpoint& checkpoint) {
  if (!leads() || checkpoint.state.step < folder_->model_step()) return;
  folder_->note_model(checkpoint.state.step);
  write_model(folder_->model(), recipe_, data_.training->classes(), checkpoint.ema, checkpoint.state.words);
}

void Run::save_checkpoint(const Checkpoint& checkpoint) {
  saved_step_ = checkpoint.state.step;
  if (!leads()) return;
  write_checkpoint(folder_->checkpoints(), checkpoint);
  prune_checkpoints(folder_->checkpoints(), recipe_.log.keep);
}

void Run::draw_sheet() {
  if (recipe_.data.encoded() && recipe_.encoders.vae.empty()) return;  // whose codec is not here
  if (state_.step < folder_->model_step()) return;  // the model that it would be of is another
  const fs::path path = folder_->samples() / sheet_name(state_.step);
  const io::Image sheet = sample_sheet(folder_->model(), recipe_, learner_->device());
  io::write_picture(path, sheet);
  log_->sheet(state_.step, path, sheet.width, sheet.height);
  say(path.string());
}

}  // namespace

RunResult train(const Recipe& recipe, const TrainOptions& options, const Watch& watch) {
  try {
    check_recipe(recipe, "train");
    TrainOptions resolved = options;
    if (options.ranks.first()) {
      resolved.resume =
          options.resume || (options.relaunched && was_launched_by(options.folder, options.launch));
      check_run_folder(options.folder, resolved.resume);
    }
    return Run(recipe, resolved, watch).train();
  } catch (const std::exception& error) {
    options.ranks.note_failure(error.what());
    throw;
  }
}

}  // namespace pom::train
