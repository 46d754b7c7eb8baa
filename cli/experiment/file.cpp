#include "cli/experiment/file.h"

#include <algorithm>
#include <map>

#include "cli/command.h"
#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/io/toml_fields.h"

namespace pom::cli::experiment {
namespace {

namespace fs = std::filesystem;

void flatten(std::span<const BoundField> fields, const std::string& prefix,
             std::map<std::string, std::string>& values) {
  for (const BoundField& field : fields) {
    const std::string name = prefix + std::string(field.field.name);
    if (field.inner.empty())
      values[name] = io::toml_value(field);
    else
      flatten(field.inner, name + ".", values);
  }
}

std::map<std::string, std::string> values_of(File file) {
  std::map<std::string, std::string> values;
  flatten(bind_fields(file), "", values);
  return values;
}

// The recipe's fields that were given, as assignments: what was not given follows from them, as in a recipe.
std::vector<std::string> recipe_assignments(const File& file, const std::set<std::string>& given) {
  constexpr std::string_view prefix = "recipe.";
  std::vector<std::string> assignments;
  for (const auto& [name, value] : values_of(file))
    if (name.starts_with(prefix) && given.contains(name) && !value.empty())
      assignments.push_back(name.substr(prefix.size()) + "=" + value);
  return assignments;
}

fs::path path_of(const std::string& name) {
  if (name.ends_with(".toml")) return name;
  const fs::path path = experiments_folder() / (name + ".toml");
  check(fs::exists(path), "experiment: expected one of ", path.parent_path().string(), ", got \"", name, "\"",
        suggestion(name, experiment_names()));
  return path;
}

}  // namespace

fs::path experiments_folder() {
  const fs::path below = fs::path("recipes") / "experiments";
  if (fs::is_directory(below)) return below;
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  for (fs::path folder = program.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
    if (fs::is_directory(folder / below)) return folder / below;
  return below;
}

std::vector<std::string> experiment_names() {
  std::vector<std::string> names;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(experiments_folder(), none))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
}

Experiment read_experiment(const std::string& name, bool quick, std::span<const std::string> sets) {
  const fs::path path = path_of(name);
  Experiment experiment{.name = path.stem().string(), .quick = quick, .file = {}};
  File& file = experiment.file;
  std::set<std::string> given = io::read_toml(io::read_toml_text(path), file, path.string());
  if (quick)
    for (const std::string& assignment : std::vector<std::string>(file.quick))
      given.insert(io::set_field(assignment, file, path.string() + ": quick"));
  for (const std::string& assignment : sets) given.insert(io::set_field(assignment, file));
  experiment.recipe = recipe_assignments(file, given);
  return experiment;
}

std::string experiment_text(const Experiment& experiment) {
  File file = experiment.file;
  return io::write_toml(file);
}

std::vector<std::string> changes_since(const std::string& before, const Experiment& experiment) {
  File old;
  io::read_toml(before, old, "experiment.toml");
  const std::map<std::string, std::string> was = values_of(old), is = values_of(experiment.file);
  const std::vector<std::string> words = {"title", "about", "claim",         "larger",
                                          "quick", "paper", "paper_columns", "judge.metrics"};
  std::vector<std::string> changed;
  for (const auto& [name, value] : is)
    if (std::ranges::find(words, name) == words.end() && was.at(name) != value)
      changed.push_back(detail::concat(name, ": ", was.at(name), " -> ", value));
  return changed;
}

}  // namespace pom::cli::experiment
