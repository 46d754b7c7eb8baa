#include "cli/plan_recipe.h"

#include <filesystem>

#include "cli/command.h"
#include "pom/io/toml_fields.h"

namespace pom::cli {

train::Recipe recipe_to_plan(const std::string& path, const std::vector<std::string>& sets) {
  namespace fs = std::filesystem;
  if (path.empty()) throw UsageError("expected a recipe, such as recipes/imagenet-xl2.toml, got nothing");
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "recipe.toml" : fs::path(path);
  return as_usage([&] {
    std::vector<std::string> all = sets;
    const data::DataConfig data = train::parse_recipe(io::read_toml_text(file), file.string(), sets).data;
    if (!data.drawn() && data.path.empty()) all.emplace_back("data.path=DIR");
    return train::read_recipe(file, all);
  });
}

}  // namespace pom::cli
