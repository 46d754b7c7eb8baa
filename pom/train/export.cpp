#include "pom/train/export.h"

#include <optional>

#include "pom/base/error.h"
#include "pom/data/dataset.h"
#include "pom/generate/folder.h"
#include "pom/io/sha256.h"
#include "pom/train/checkpoint.h"
#include "pom/train/encoders.h"
#include "pom/train/model_folder.h"
#include "pom/train/recipe.h"
#include "pom/train/refusal.h"

namespace pom::train {
namespace {

namespace fs = std::filesystem;

std::optional<std::vector<std::string>> names_in_data(const Recipe& recipe) {
  try {
    return open_data(recipe).training->classes();
  } catch (const Error&) {  // the data may be elsewhere by now
    return {};
  }
}

std::optional<std::vector<std::string>> names_in_run(const fs::path& checkpoint) {
  const fs::path model = fs::absolute(checkpoint).parent_path().parent_path() / "model";
  std::error_code ignored;
  if (!fs::is_regular_file(model / generate::config_file, ignored)) return {};
  try {
    return generate::read_config(model).classes;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::string hash_of_classes(const std::vector<std::string>& names) {
  io::Sha256 hash;
  for (const std::string& name : names) hash.update(name + "\n");
  return hash.hex();
}

Exported export_model(const fs::path& path, const fs::path& folder, ExportedWeights which) {
  std::error_code ignored;
  refuse_unless(!fs::exists(folder, ignored) || fs::is_empty(folder, ignored), "export: ", folder.string(),
                ": expected a folder that is not there yet, got one that is: choose another");
  const Checkpoint checkpoint = read_checkpoint(path);
  const Recipe recipe = parse_recipe(checkpoint.recipe, path.string() + ": recipe");
  Exported done{.step = checkpoint.state.step};
  std::vector<std::string> classes;
  if (!recipe.network.video()) {
    const auto known = [&](const std::optional<std::vector<std::string>>& names) {
      if (!names || hash_of_classes(*names) != checkpoint.state.classes) return false;
      classes = *names;
      return true;
    };
    done.class_names = known(names_in_run(path)) || known(names_in_data(recipe));
  }
  write_model(folder, recipe, classes, which == ExportedWeights::raw ? checkpoint.weights : checkpoint.ema,
              checkpoint.state.words);
  return done;
}

}  // namespace pom::train
