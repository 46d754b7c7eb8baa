// The folder of an experiment, of which its table is made and nothing else:
//
//   experiment.toml        the file as it was resolved
//   judge-SEED.safetensors a judge that has learnt
//   floor.json             what the judge says of drawings
//   doses/NAME.json        and of drawings that are spoilt
//   device.json            where it is timed, if anything is
//   ARM/seed-S/            the folder of a run (pom train), without its checkpoints once it is done
//   ARM/seed-S/trained.json
//   ARM/seed-S/judged-POINT.json
//   sweep/ARM/VALUE/seed-S likewise, of what an arm chooses from
//   sheets/                samples of the first seed
//   results.json, table.md, plot.svg
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/experiment/metrics.h"
#include "cli/experiment/plan.h"

namespace pom::cli::experiment {

// How a training ended.
struct Trained {
  std::int64_t steps = 0, parameters = 0;
  std::optional<double> validation_loss = {};
  double seconds = 0;
  std::string device, recipe_sha256;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "steps", .help = "steps"}, steps);
    visit(Field{.name = "parameters", .help = "parameters of the network"}, parameters);
    visit(Field{.name = "validation_loss", .help = "the last one"}, validation_loss);
    visit(Field{.name = "seconds", .help = "spent in training"}, seconds);
    visit(Field{.name = "device", .help = "where it was trained"}, device);
    visit(Field{.name = "recipe_sha256", .help = "of the resolved recipe"}, recipe_sha256);
  }
};

class Folder {
 public:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path run(const std::string& arm, std::int64_t seed) const;
  // Of one value that an arm tries.
  std::filesystem::path sweep_run(const std::string& arm, const std::string& value, std::int64_t seed) const;

  // Nothing where it is not there yet.
  static std::optional<Trained> trained(const std::filesystem::path& run);
  static void write_trained(const std::filesystem::path& run, Trained trained);
  static std::optional<Scores> judged(const std::filesystem::path& run, const std::string& point);
  static void write_judged(const std::filesystem::path& run, const std::string& point, const Scores& scores);
  std::optional<Scores> floor() const;
  void write_floor(const Scores& scores) const;
  std::optional<Scores> dose(const std::string& name) const;
  void write_dose(const std::string& name, const Scores& scores) const;
  // Seconds of a step of an arm, measured once.
  std::optional<double> step_seconds(const std::string& arm) const;
  void write_step_seconds(const std::string& arm, double seconds) const;

  // The device of its times; a second one is refused.
  std::optional<std::string> device() const;
  void keep_to(const std::string& device) const;

  // The folder, which exists, is begun, or goes on: refuses results of another experiment, and without
  // `resume` any results.
  void begin(const Experiment& experiment, bool resume) const;

 private:
  std::filesystem::path path_;
};

}  // namespace pom::cli::experiment
