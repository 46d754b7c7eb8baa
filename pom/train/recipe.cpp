#include "pom/train/recipe.h"

#include <set>

#include "pom/base/error.h"
#include "pom/io/toml_fields.h"

namespace pom::train {
namespace {

// Fields that a resumed run must keep: with another value the state would mean something else.
const std::vector<std::string_view> fixed_fields = {"run.seed",   "run.precision",   "data.kind",
                                                    "data.size",  "data.validation", "network.",
                                                    "diffusion.", "codec."};

bool fixed(std::string_view field) {
  for (const std::string_view name : fixed_fields)
    if (field == name || (name.ends_with('.') && field.starts_with(name))) return true;
  return false;
}

std::set<std::string> apply(Recipe& recipe, std::string_view toml, std::string_view source,
                            std::span<const std::string> sets) {
  std::set<std::string> given = io::read_toml(toml, recipe, source);
  for (const std::string& assignment : sets) given.insert(io::set_field(assignment, recipe));
  return given;
}

void flatten(std::span<const BoundField> fields, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>& values) {
  for (const BoundField& field : fields) {
    if (!field.field.saved) continue;
    const std::string name = prefix + std::string(field.field.name);
    if (!field.inner.empty())
      flatten(field.inner, name + ".", values);
    else
      values.emplace_back(name, io::toml_value(field));
  }
}

std::vector<std::pair<std::string, std::string>> values_of(Recipe& recipe) {
  std::vector<std::pair<std::string, std::string>> values;
  flatten(bind_fields(recipe), "", values);
  return values;
}

}  // namespace

Recipe parse_recipe(std::string_view toml, std::string_view source, std::span<const std::string> sets) {
  Recipe first;
  const std::set<std::string> given = apply(first, toml, source, sets);
  Recipe recipe;
  if (!first.network.variant.empty()) recipe.network = models::variant(first.network.variant);
  recipe.network.classes = recipe.network.channels = 0;  // the data's
  apply(recipe, toml, source, sets);
  if (!given.contains("sample.size")) recipe.sample.size = recipe.data.size;
  return recipe;
}

Recipe read_recipe(const std::filesystem::path& path, std::span<const std::string> sets) {
  Recipe recipe = parse_recipe(io::read_toml_text(path), path.string(), sets);
  if (recipe.run.name.empty()) recipe.run.name = path.stem().string();
  check_recipe(recipe, path.string());
  return recipe;
}

void check_recipe(const Recipe& recipe, std::string_view source) {
  const auto expect = [&](bool ok, const auto&... parts) { check(ok, source, ": ", parts...); };
  const OptimizerConfig& o = recipe.optimizer;
  const std::vector<std::int64_t>& size = recipe.data.size;
  expect(o.cooldown <= recipe.run.steps, "optimizer.cooldown: expected at most run.steps (", recipe.run.steps,
         "), got ", o.cooldown);
  expect(recipe.batch.size % recipe.batch.accumulate == 0,
         "batch.accumulate: expected a divisor of batch.size (", recipe.batch.size, "), got ",
         recipe.batch.accumulate);
  expect(size.size() == 2, "data.size: expected width and height, got ", size.size(), " numbers");
  expect(recipe.data.kind == "latents" ||
             (size[0] % recipe.network.patch == 0 && size[1] % recipe.network.patch == 0),
         "data.size: expected sides that network.patch (", recipe.network.patch, ") divides, got ", size[0],
         "x", size[1]);
  expect(recipe.data.kind == "shapes" || !recipe.data.path.empty(), "data.path: expected the folder of the ",
         recipe.data.kind == "folder" ? "pictures" : "latents", ", got nothing; give it in the recipe or as ",
         "--set data.path=DIR");
  expect(recipe.data.kind != "shapes" || recipe.data.path.empty(),
         "data.path: expected nothing with data.kind shapes, got \"", recipe.data.path, "\"");
  models::NetworkConfig network =
      recipe.network;  // whose classes and channels the data may still have to tell
  if (network.classes == 0)
    network.classes = network.variant.empty() ? 1 : models::variant(network.variant).classes;
  if (network.channels == 0)
    network.channels = network.variant.empty() ? 3 : models::variant(network.variant).channels;
  models::check_config(network, detail::concat(source, ": network: "));
}

void complete_recipe(Recipe& recipe, const data::Dataset& dataset) {
  const auto take = [&](std::int64_t& value, std::int64_t found, const char* name) {
    check(value == 0 || value == found, "train: network.", name, ": expected ", found,
          ", as the data has, got ", value);
    value = found;
  };
  take(recipe.network.classes, std::ssize(dataset.classes()), "classes");
  take(recipe.network.channels, dataset.shape().at(0), "channels");
  const std::vector<std::int64_t> shape = dataset.shape();
  check(shape[1] % recipe.network.patch == 0 && shape[2] % recipe.network.patch == 0,
        "train: network.patch: expected a divisor of the data's sides (", shape[2], "x", shape[1], "), got ",
        recipe.network.patch);
  if (dataset.latents()) recipe.sample.size = {shape[2], shape[1]};  // until a codec says what they stand for
}

std::string recipe_text(Recipe recipe) {
  return io::write_toml(recipe);
}

std::vector<Change> changes(Recipe before, Recipe after) {
  const auto old_values = values_of(before), new_values = values_of(after);
  std::vector<Change> found;
  for (std::size_t i = 0; i < old_values.size(); ++i)
    if (old_values[i].second != new_values[i].second)
      found.push_back(
          {old_values[i].first, old_values[i].second, new_values[i].second, !fixed(old_values[i].first)});
  return found;
}

}  // namespace pom::train
