#include "cli/experiment/folder.h"

#include "cli/command.h"
#include "cli/json.h"
#include "cli/output_names.h"
#include "pom/base/error.h"
#include "pom/io/atomic_file.h"
#include "pom/io/json_fields.h"
#include "pom/io/toml_fields.h"

namespace pom::cli::experiment {
namespace {

namespace fs = std::filesystem;

std::optional<Scores> read_scores(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  return io::read_json_values(io::read_json_text(path), "scores", path.string());
}

void write_scores(const fs::path& path, const Scores& scores) {
  JsonObject values;
  for (const auto& [name, value] : scores) values.add(name, value);
  fs::create_directories(path.parent_path());
  io::write_file_atomically(path, JsonObject().add("scores", values).text() + "\n");
}

struct Place {
  std::string device = {};

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "device", .help = "where it is timed"}, device);
  }
};

// Beside locks, and what a killed process had begun to write.
bool holds_files(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (!entry.path().filename().string().starts_with('.')) return true;
  return false;
}

}  // namespace

fs::path Folder::run(const std::string& arm, std::int64_t seed) const {
  return path_ / arm / detail::concat("seed-", seed);
}

fs::path Folder::sweep_run(const std::string& arm, const std::string& value, std::int64_t seed) const {
  return path_ / "sweep" / arm / file_safe(value) / detail::concat("seed-", seed);
}

std::optional<Trained> Folder::trained(const fs::path& run) {
  const fs::path path = run / "trained.json";
  if (!fs::exists(path)) return std::nullopt;
  Trained trained;
  io::read_json(io::read_json_text(path), trained, path.string());
  return trained;
}

void Folder::write_trained(const fs::path& run, Trained trained) {
  io::write_file_atomically(run / "trained.json", io::write_json(trained) + "\n");
}

std::optional<Scores> Folder::judged(const fs::path& run, const std::string& point) {
  return read_scores(run / ("judged-" + point + ".json"));
}

void Folder::write_judged(const fs::path& run, const std::string& point, const Scores& scores) {
  write_scores(run / ("judged-" + point + ".json"), scores);
}

std::optional<Scores> Folder::floor() const {
  return read_scores(path_ / "floor.json");
}

void Folder::write_floor(const Scores& scores) const {
  write_scores(path_ / "floor.json", scores);
}

std::optional<Scores> Folder::dose(const std::string& name) const {
  return read_scores(path_ / "doses" / (file_safe(name) + ".json"));
}

void Folder::write_dose(const std::string& name, const Scores& scores) const {
  write_scores(path_ / "doses" / (file_safe(name) + ".json"), scores);
}

std::optional<double> Folder::step_seconds(const std::string& arm) const {
  const std::optional<Scores> scores = read_scores(path_ / arm / "step.json");
  if (!scores) return std::nullopt;
  return score_named(*scores, "seconds");
}

void Folder::write_step_seconds(const std::string& arm, double seconds) const {
  write_scores(path_ / arm / "step.json", {{"seconds", seconds}});
}

std::optional<std::string> Folder::device() const {
  const fs::path path = path_ / "device.json";
  if (!fs::exists(path)) return std::nullopt;
  Place place;
  io::read_json(io::read_json_text(path), place, path.string());
  return place.device;
}

void Folder::keep_to(const std::string& device) const {
  const std::optional<std::string> before = this->device();
  if (before && *before != device)
    throw UsageError(detail::concat("--device: ", path_.string(), " holds times of ", *before,
                                    ", which go with no others: expected ", *before, ", got ", device));
  Place place{.device = device};
  if (!before) io::write_file_atomically(path_ / "device.json", io::write_json(place) + "\n");
}

void Folder::begin(const Experiment& experiment, bool resume) const {
  const fs::path file = path_ / "experiment.toml";
  if (fs::exists(file)) {
    if (!resume)
      throw UsageError(detail::concat(path_.string(),
                                      ": holds results of an experiment; --resume continues it, ",
                                      "-o DIR takes another folder"));
    std::string changed;
    for (const std::string& line : changes_since(io::read_toml_text(file), experiment))
      changed += "\n  " + line;
    if (!changed.empty())
      throw UsageError(detail::concat("--resume: ", path_.string(),
                                      " holds results of another experiment; use ",
                                      "-o DIR for a new one, or change these back:", changed));
    return;
  }
  if (holds_files(path_))
    throw UsageError(path_.string() + ": expected a new or empty folder, got one with other files");
  io::write_file_atomically(file, experiment_text(experiment));
}

}  // namespace pom::cli::experiment
