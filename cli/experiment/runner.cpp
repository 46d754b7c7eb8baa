#include "cli/experiment/runner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "cli/bench/timing.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/generate/device.h"
#include "pom/io/json_fields.h"
#include "pom/io/sha256.h"
#include "pom/train/checkpoint.h"
#include "pom/train/trainer.h"

namespace pom::cli::experiment {
namespace {

namespace fs = std::filesystem;

// Of what makes a run what it is: not of where it is computed.
std::string hash_of(train::Recipe recipe) {
  const train::RunConfig plain;
  recipe.run.device = plain.device, recipe.run.threads = plain.threads;
  recipe.data.workers = 0;
  io::Sha256 hash;
  hash.update(train::recipe_text(recipe));
  return hash.hex();
}

struct ValidationLine {
  std::optional<double> validation_loss = {};

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "validation_loss", .help = "of the average"}, validation_loss);
  }
};

// The last one of a run's log: a run that was resumed at its end has validated before.
std::optional<double> last_validation(const fs::path& run) {
  std::ifstream file(run / "log.jsonl");
  std::optional<double> last;
  for (std::string line; std::getline(file, line);) {
    ValidationLine found;
    io::read_json(line, found, (run / "log.jsonl").string(), io::JsonOrigin::foreign);
    if (found.validation_loss) last = found.validation_loss;
  }
  return last;
}

train::Watch watch_of(const StopSignals& signals, bool quiet) {
  train::Watch watch;
  watch.stop = &signals.asked();
  if (quiet) return watch;
  watch.sink = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  };
  watch.progress = {.terminal = is_terminal(2), .width = terminal_width(2), .unit = "step"};
  watch.say = [](std::string_view line) { say(line); };
  return watch;
}

}  // namespace

Runner::Runner(const Plan& plan, const Folder& folder, const RunOptions& options, const StopSignals& signals)
    : plan_(plan), folder_(folder), options_(options), signals_(signals) {}

void Runner::remark(const std::string& text) const {
  if (!options_.quiet) say(text);
}

double Runner::seconds_left() const {
  if (options_.minutes == 0) return 0;
  return std::max(1e-3, options_.minutes * 60 - (steady_seconds() - began_));
}

void Runner::check_time() const {
  if (signals_.asked().load()) throw Leave{Outcome::stopped};
  if (options_.minutes > 0 && seconds_left() <= 1e-3) throw Leave{Outcome::out_of_time};
}

std::unique_ptr<Judge> Runner::new_judge(std::int64_t seed) const {
  JudgeRoom room{.config = plan_.file().judge,
                 .recipe = recipe_of(plan_, plan_.arms[plan_.rows.front().arm], plan_.file().seeds.front()),
                 .folder = folder_.path(),
                 .signals = signals_,
                 .device = options_.device,
                 .batch = options_.batch,
                 .quiet = options_.quiet};
  if (seed != room.config.seed) {  // of the sweep
    room.config.file.clear();
    room.config.inception &= plan_.file().sweep.metric == "frechet_inception";
  }
  room.config.seed = seed;
  if (room.config.inception && generate::device_named(options_.device, "experiment").is_cpu())
    remark("judge.inception: takes long without a GPU; --set judge.inception=false leaves it out");
  return make_judge(room);
}

Judge& Runner::main_judge() {
  if (!judge_) judge_ = new_judge(plan_.file().judge.seed);
  return *judge_;
}

// What is chosen by one judge is measured by another.
Judge& Runner::sweep_judge() {
  if (!sweep_judge_) sweep_judge_ = new_judge(plan_.file().judge.seed + 1);
  return *sweep_judge_;
}

// Beside what follows. After a signal nothing more is begun, so no model goes before it is judged.
void Runner::later(std::function<void()> piece) {
  backlog_.add([this, piece = std::move(piece)] {
    if (!signals_.asked().load()) piece();
  });
}

void Runner::finish() {
  backlog_.finish();
  if (signals_.asked().load()) throw Leave{Outcome::stopped};
}

void Runner::measure_floor() {
  if (!folder_.floor())
    later([this, &judge = main_judge(), drawings = main_judge().drawings()] {
      folder_.write_floor(judge.scores(drawings));
    });
  if (!plan_.file().judge.doses) return;
  for (const Dose& dose : doses()) {
    if (folder_.dose(dose.name)) continue;
    check_time();
    later([this, &dose, &judge = main_judge(), drawings = main_judge().drawings(&dose)] {
      folder_.write_dose(dose.name, judge.scores(drawings));
    });
  }
}

void Runner::train(const train::Recipe& recipe, const fs::path& run, const std::string& init_from,
                   const std::string& what) {
  const std::string hash = hash_of(recipe);
  if (const std::optional<Trained> done = Folder::trained(run)) {
    check(done->recipe_sha256 == hash, run.string(), ": was trained with another recipe than it has now");
    return;
  }
  check_time();
  train::Recipe here = recipe;
  here.run.device = options_.device;
  if (options_.threads > 0) here.run.threads = options_.threads;
  const bool resume = train::newest_step(run / "checkpoints") >= 0;
  const train::TrainOptions options{.folder = run,
                                    .resume = resume,
                                    .from = {},
                                    .init_from = resume ? std::string() : init_from,
                                    .seconds = seconds_left(),
                                    .command = options_.command};
  remark(what);
  const train::RunResult result = train::train(here, options, watch_of(signals_, options_.quiet));
  if (result.end == train::End::stopped) throw Leave{Outcome::stopped};
  if (result.end == train::End::out_of_time) throw Leave{Outcome::out_of_time};
  Folder::write_trained(run, {.steps = result.state.step,
                              .parameters = parameters_of(recipe),
                              .validation_loss = last_validation(run),
                              .seconds = result.state.seconds,
                              .device = generate::device_named(options_.device, "experiment").str(),
                              .recipe_sha256 = hash});
  fs::remove_all(run / "checkpoints");  // of what is done nothing is resumed
}

void Runner::judge(const fs::path& model, const fs::path& run, const Point& point, std::int64_t seed,
                   Judge& judge, const fs::path& sheet) {
  check_time();
  later([run, name = point.name, &judge, samples = judge.samples(model, request_of(point), seed, sheet)] {
    Scores scores = judge.scores(samples);
    if (const std::optional<Trained> trained = Folder::trained(run); trained && trained->validation_loss)
      scores.emplace_back("validation_loss", *trained->validation_loss);
    Folder::write_judged(run, name, scores);
  });
}

// Once all that came before is judged.
void Runner::remove_later(const fs::path& model) {
  if (options_.lean) later([model] { fs::remove_all(model); });
}

std::vector<Runner::Cell> Runner::sweep_cells() const {
  const SweepConfig& sweep = plan_.file().sweep;
  std::vector<Cell> all;
  for (const Arm& arm : plan_.arms) {
    if (!arm.trains() || !arm.sweep.empty()) continue;
    for (const std::string& value : sweep.values)
      for (const std::int64_t seed : sweep.seeds) all.push_back({&arm, seed, value});
  }
  return all;
}

std::vector<Runner::Cell> Runner::cells() const {
  std::vector<Cell> all;
  for (const std::int64_t seed : plan_.file().seeds)
    for (const Arm& arm : plan_.arms) all.push_back({&arm, seed});
  return all;
}

fs::path Runner::run_of(const Cell& cell) const {
  return cell.value.empty() ? folder_.run(cell.arm->name, cell.seed)
                            : folder_.sweep_run(cell.arm->name, cell.value, cell.seed);
}

std::string Runner::name_of(const Cell& cell) const {
  return run_of(cell).lexically_relative(folder_.path()).generic_string();
}

// Nothing else is at work meanwhile.
void Runner::time_steps() {
  for (const Arm& arm : plan_.arms)
    if (arm.equal == "seconds")
      final_recipe(plan_, folder_, arm, plan_.file().seeds.front(), options_.device, true);
}

void Runner::train(const Cell& cell) {
  const Arm& arm = *cell.arm;
  const fs::path run = run_of(cell);
  if (cell.value.empty()) {
    const auto recipe = final_recipe(plan_, folder_, arm, cell.seed, options_.device, true);
    check(recipe.has_value(), arm.name, ": the sweep of its recipe is not done");
    const std::string first =
        arm.from.empty() ? std::string() : (folder_.run(arm.from, cell.seed) / "model").string();
    train(*recipe, run, first, detail::concat(arm.name, ", seed ", cell.seed));
    return;
  }
  const SweepConfig& sweep = plan_.file().sweep;
  std::vector<std::string> more = {sweep.field + "=" + cell.value};
  const train::Recipe usual = recipe_of(plan_, arm, cell.seed, more);
  if (sweep.steps > 0)
    for (const std::string& assignment : with_steps(usual, sweep.steps)) more.push_back(assignment);
  train(recipe_of(plan_, arm, cell.seed, more), run, {},
        detail::concat(arm.name, ", ", sweep.field, " ", cell.value, ", seed ", cell.seed));
}

void Runner::judge_tried(const Cell& cell) {
  const fs::path run = run_of(cell);
  const Point how{"sweep", plan_.points.front().sets};
  if (!Folder::judged(run, how.name)) judge(run / "model", run, how, cell.seed, sweep_judge(), {});
  remove_later(run / "model");
}

// Models of a seed stay until all its arms are done: one may begin with another's.
void Runner::judge(const Cell& cell) {
  if (!cell.value.empty()) return judge_tried(cell);
  const Arm& arm = *cell.arm;
  const fs::path model = folder_.run(arm.trains() ? arm.name : arm.model, cell.seed) / "model";
  for (const Point& point : plan_.points) {
    if (!arm.judged) break;
    if (Folder::judged(run_of(cell), point.name)) continue;  // before a judge is made ready
    const bool first = cell.seed == plan_.file().seeds.front();
    const std::string name = plan_.points.size() > 1 ? arm.name + "-" + point.name : arm.name;
    judge(model, run_of(cell), point, cell.seed, main_judge(),
          first ? folder_.path() / "sheets" / (name + ".png") : fs::path());
  }
  if (++arms_done_[cell.seed] < plan_.arms.size()) return;
  for (const Arm& one : plan_.arms) remove_later(folder_.run(one.name, cell.seed) / "model");
}

void Runner::work_through(const std::vector<Cell>& all) {
  if (options_.jobs > 1) return work_at_once(all);
  for (const Cell& cell : all) {
    if (cell.arm->trains()) train(cell);
    judge(cell);
  }
}

// In the order of their list, but for those that must wait for an arm before them.
void Runner::work_at_once(const std::vector<Cell>& all) {
  Workers workers(options_.jobs, signals_);
  for (const Cell& cell : all) {
    const Arm& arm = *cell.arm;
    const std::string& needs = arm.trains() ? arm.from : arm.model;
    while (!needs.empty() && !Folder::trained(folder_.run(needs, cell.seed))) settle(workers, all);
    if (!arm.trains() || Folder::trained(run_of(cell))) {
      if (arm.trains()) train(cell);  // is done: only looks whether the recipe is the same
      judge(cell);
      continue;
    }
    while (workers.full()) settle(workers, all);
    start(workers, cell);
    if (workers.full()) cell.value.empty() ? main_judge() : sweep_judge();  // made ready meanwhile
  }
  while (!workers.idle()) settle(workers, all);
}

void Runner::start(Workers& workers, const Cell& cell) {
  check_time();
  std::vector<std::string> words = options_.again;
  words.insert(words.end(), {"--only", name_of(cell)});
  if (options_.minutes > 0)
    words.insert(words.end(), {"--minutes", std::to_string(std::max(0.001, seconds_left() / 60))});
  remark(name_of(cell) + ": training");
  workers.start(name_of(cell), std::move(words));
}

void Runner::settle(Workers& workers, const std::vector<Cell>& all) {
  const Workers::Ended ended = workers.wait();
  if (signals_.asked().load()) throw Leave{Outcome::stopped};
  check(ended.status == 0, ended.name, ": its training ended with exit status ", ended.status);
  const auto cell = std::ranges::find(all, ended.name, [&](const Cell& one) { return name_of(one); });
  const std::optional<Trained> trained = Folder::trained(run_of(*cell));
  if (!trained) throw Leave{Outcome::out_of_time};
  remark(detail::concat(ended.name, ": ", trained->steps, " steps in ", std::lround(trained->seconds), " s"));
  judge(*cell);
}

void Runner::time_points(std::int64_t seed) {
  const fs::path run = folder_.run(plan_.arms.front().name, seed);
  for (const Point& point : plan_.points) {
    if (Folder::judged(run, point.name)) continue;
    check_time();
    remark(detail::concat(plan_.experiment.name, ", ", point.name, ", repetition ", seed));
    Folder::write_judged(run, point.name,
                         plan_.file().judge.kind == "figure1"
                             ? time_figure1(point.sets, options_.device, signals_)
                             : time_streaming(point.sets));
  }
}

Outcome Runner::leaving(const std::function<void()>& work) {
  try {
    work();
    return Outcome::complete;
  } catch (const Leave& leave) {
    if (leave.outcome == Outcome::out_of_time) backlog_.finish();  // models that are trained are judged
    return leave.outcome;
  } catch (const generate::Stopped&) {
    return Outcome::stopped;
  } catch (const BenchStopped&) {
    return Outcome::stopped;
  }
}

Outcome Runner::run() {
  return leaving([&] {
    if (plan_.file().timed()) {
      for (const std::int64_t seed : plan_.file().seeds) time_points(seed);
      return;
    }
    if (options_.jobs == 1) measure_floor();
    if (!plan_.file().sweep.field.empty()) work_through(sweep_cells());
    finish();  // what the sweeps chose from
    time_steps();
    work_through(cells());
    if (options_.jobs > 1) measure_floor();  // trainings do not wait for it
    finish();
  });
}

Outcome Runner::train_only(const std::string& name) {
  std::vector<Cell> all = cells();
  if (!plan_.file().sweep.field.empty()) std::ranges::copy(sweep_cells(), std::back_inserter(all));
  std::erase_if(all, [](const Cell& cell) { return !cell.arm->trains(); });
  std::vector<std::string> names;
  for (const Cell& cell : all) names.push_back(name_of(cell));
  const auto found = std::ranges::find(names, name);
  if (found == names.end())
    throw UsageError(detail::concat("--only: expected a run of the experiment such as ", names.front(),
                                    ", got ", name, suggestion(name, names)));
  return leaving([&] { train(all[static_cast<std::size_t>(found - names.begin())]); });
}

}  // namespace pom::cli::experiment
