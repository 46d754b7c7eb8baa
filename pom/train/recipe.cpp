#include "pom/train/recipe.h"

#include <algorithm>
#include <map>
#include <set>

#include "pom/base/error.h"
#include "pom/io/json_fields.h"
#include "pom/io/toml_fields.h"
#include "pom/train/refusal.h"

namespace pom::train {
namespace {

// Fields that a resumed run must keep: with another value the state would mean something else.
const std::vector<std::string_view> fixed_fields = {
    "run.seed",   "run.precision", "optimizer.kind", "data.kind", "data.size",   "data.validation",
    "network.",   "diffusion.",    "codec.",         "text.",     "data.layout", "data.quantization_scale",
    "data.scale", "data.shift"};

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
  if (!given.contains("network.text_width")) recipe.network.text_width = recipe.text.width;
  return recipe;
}

namespace {

// Letters and digits as ASCII has them: a name is part of a path, on every file system.
bool fits_a_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

// The name of a file as that of a run: "my first.toml" -> "my-first".
std::string name_after(const std::filesystem::path& path) {
  std::string name = path.stem().string();
  for (char& c : name)
    if (!fits_a_name(c)) c = '-';
  name.erase(0, std::min(name.find_first_not_of('.'), name.size()));
  return name;
}

void check_name(const std::string& name, std::string_view source) {
  constexpr std::size_t longest = 200;  // file systems take 255 bytes
  const bool fits =
      name.size() <= longest && !name.starts_with('.') && std::ranges::all_of(name, fits_a_name);
  if (fits) return;
  fail(source, ": run.name: expected at most ", longest,
       " letters, digits, '.', '_' and '-' without a dot at the beginning, got ",
       io::json_quoted(name.substr(0, 80)), name.size() > 80 ? "…" : "");
}

}  // namespace

Recipe read_recipe(const std::filesystem::path& path, std::span<const std::string> sets) {
  Recipe recipe = parse_recipe(io::read_toml_text(path), path.string(), sets);
  if (recipe.run.name.empty()) recipe.run.name = name_after(path);
  check_recipe(recipe, path.string());
  return recipe;
}

namespace {

void check_data(const Recipe& recipe, std::string_view source) {
  const auto expect = [&](bool ok, const auto&... parts) { check(ok, source, ": ", parts...); };
  const data::DataConfig& data = recipe.data;
  const std::int64_t patch = recipe.network.patch;
  const std::vector<std::int64_t>& size = data.size;
  expect(size.size() == 2, "data.size: expected width and height, got ", size.size(), " numbers");
  expect(data.encoded() || (size[0] % patch == 0 && size[1] % patch == 0),
         "data.size: expected sides that network.patch (", patch, ") divides, got ", size[0], "x", size[1]);
  const bool drawn = data.drawn();
  expect(drawn || !data.path.empty(), "data.path: expected the folder of the ",
         data.kind == "folder" ? "images" : data.kind, ", got nothing; give it in the recipe or as ",
         "--set data.path=DIR");
  expect(!drawn || data.path.empty(), "data.path: expected nothing with data.kind ", data.kind, ", got \"",
         data.path, "\"");
  try {
    if (drawn) data::open_dataset(data, 0);  // no files: all that is wrong with it is the recipe's
    if (data.kind == "folder" || data.kind == "clips") data::check_picture_size(data);
    if (data.kind == "clips") data::check_clip_length(data);
  } catch (const Error& error) {
    fail(source, ": ", error.what());
  }
  expect(!data.encoded() || !data.flip, "data.flip: expected false with data.kind ", data.kind,
         ": latents cannot be mirrored");
  expect(data.encoded() || recipe.codec.kind == "pixels" || !recipe.encoders.vae.empty(),
         "encoders.vae: expected the folder of the autoencoder, as codec.kind is ", recipe.codec.kind,
         ", got nothing");
}

void check_clips(const Recipe& recipe, std::string_view source) {
  const auto expect = [&](bool ok, const auto&... parts) { check(ok, source, ": ", parts...); };
  const models::NetworkConfig& network = recipe.network;
  expect(recipe.data.moving() == network.video(), "network.kind: expected ",
         recipe.data.moving() ? "vdipom (or the variant of a network for clips)" : "dipom",
         " with data.kind ", recipe.data.kind, ", got ", network.kind);
  if (!network.video()) {
    expect(recipe.batch.latest_block == 0, "batch.latest_block: expected 0 with a network for images, got ",
           recipe.batch.latest_block);
    expect(recipe.batch.cut == 0, "batch.cut: expected 0 with a network for images, got ", recipe.batch.cut);
    return;
  }
  expect(recipe.data.encoded() || recipe.data.frames % network.patch_time == 0,
         "data.frames: expected whole blocks of network.patch_time (", network.patch_time, ") frames, got ",
         recipe.data.frames);
  const std::int64_t cut = recipe.batch.cut_frames;
  expect(recipe.batch.cut == 0 || (cut > 0 && cut % network.patch_time == 0 && recipe.data.frames % cut == 0),
         "batch.cut_frames: expected whole blocks of network.patch_time (", network.patch_time,
         ") frames that divide data.frames (", recipe.data.frames, "), got ", cut);
  const data::SpriteOptions& sprites = recipe.data.sprites;
  if (recipe.data.kind == "sprites" && sprites.changes > 0)
    expect(sprites.change_every % network.patch_time == 0 &&
               (recipe.batch.cut == 0 || cut % sprites.change_every == 0),
           "data.change_every: expected whole blocks of network.patch_time (", network.patch_time, ") frames",
           recipe.batch.cut == 0 ? "" : detail::concat(" that divide batch.cut_frames (", cut, ")"), ", got ",
           sprites.change_every);
  expect(!network.needs_length() || recipe.batch.latest_block == 0,
         "batch.latest_block: expected 0 with network.time_code relative, which knows no later block, got ",
         recipe.batch.latest_block);
  expect(network.text_width == recipe.text.width, "network.text_width: expected text.width (",
         recipe.text.width, "), got ", network.text_width);
  expect(
      !recipe.batch.checkpointing,
      "batch.checkpointing: expected false with a network for clips: activation checkpointing does not exist "
      "for clips; a larger batch.accumulate saves memory too");
  const bool pictures = recipe.data.drawn() && recipe.data.frames == 1;
  expect(recipe.log.sample_every == 0 || pictures,
         "log.sample_every: expected 0 with a network for clips: there are no sheets of them");
}

// What the model's config.json would be refused for, before there is a model. Without names of classes those
// of the data are not known yet, nor is the size of latents.
void check_model(const Recipe& recipe, const models::NetworkConfig& network,
                 const std::vector<std::string>& classes, std::string_view source) {
  generate::ModelConfig config;
  config.name = recipe.run.name;
  config.network = network;
  config.codec = recipe.codec;
  config.sample = recipe.sample;
  config.classes = classes;
  if (recipe.data.encoded() && classes.empty()) config.sample.size = {network.patch, network.patch};
  generate::check_config(config, detail::concat(source, ": "));
}

}  // namespace

void check_recipe(const Recipe& recipe, std::string_view source) {
  const auto expect = [&](bool ok, const auto&... parts) { check(ok, source, ": ", parts...); };
  check_name(recipe.run.name, source);
  const OptimizerConfig& o = recipe.optimizer;
  expect(o.cooldown <= recipe.run.steps, "optimizer.cooldown: expected at most run.steps (", recipe.run.steps,
         "), got ", o.cooldown);
  expect(recipe.batch.size % recipe.batch.accumulate == 0,
         "batch.accumulate: expected a divisor of batch.size (", recipe.batch.size, "), got ",
         recipe.batch.accumulate);
  check_data(recipe, source);
  check_clips(recipe, source);
  models::NetworkConfig network =
      recipe.network;  // whose classes and channels the data may still have to tell
  if (network.classes == 0)
    network.classes = network.variant.empty() ? 1 : models::variant(network.variant).classes;
  if (network.channels == 0)
    network.channels = network.variant.empty() ? 3 : models::variant(network.variant).channels;
  models::check_config(network, detail::concat(source, ": network: "));
  check_model(recipe, network, {}, source);
}

namespace {

// That latents of clips, of so many latent frames, are whole blocks, also where they are cut.
void check_latent_clips(const Recipe& recipe, std::int64_t latents) {
  const std::int64_t patch = recipe.network.patch_time;
  refuse_unless(latents % patch == 0, "train: data.path: expected latents of whole blocks of ",
                "network.patch_time (", patch, ") frames, got ", latents, " of them");
  if (recipe.batch.cut == 0) return;
  const std::int64_t cut = recipe.batch.cut_frames, pieces = recipe.data.frames / cut;
  refuse_unless(latents % pieces == 0 && latents / pieces % patch == 0,
                "train: batch.cut_frames: expected clips that are whole blocks of network.patch_time (",
                patch, ") latent frames, got ", cut, " of ", recipe.data.frames, " frames, which are ",
                latents, " latent frames");
}

// A network for clips is told no class; its clips are, unless told, as long and as fast as the data's.
void complete_clips(Recipe& recipe) {
  if (recipe.network.classes == 0) recipe.network.classes = 1;
  if (recipe.sample.frames == 0) recipe.sample.frames = recipe.data.frames;
  if (recipe.sample.fps == 0) recipe.sample.fps = recipe.data.fps;
}

}  // namespace

void complete_recipe(Recipe& recipe, const data::Dataset& dataset, std::int64_t factor) {
  const auto take = [&](std::int64_t& value, std::int64_t found, const char* name) {
    refuse_unless(value == 0 || value == found, "train: network.", name, ": expected ", found,
                  ", as the data has, got ", value);
    value = found;
  };
  const std::vector<std::int64_t> shape = dataset.shape();
  const std::int64_t height = shape.at(shape.size() - 2), width = shape.back(), patch = recipe.network.patch;
  if (recipe.network.video()) {
    if (dataset.latents()) check_latent_clips(recipe, shape.at(1));
    complete_clips(recipe);
  } else {
    take(recipe.network.classes, std::ssize(dataset.classes()), "classes");
  }
  take(recipe.network.channels, shape.at(0), "channels");
  refuse_unless(height % patch == 0 && width % patch == 0,
                "train: network.patch: expected a divisor of the data's sides (", width, "x", height,
                "), got ", patch);
  if (dataset.latents() && recipe.sample.size == recipe.data.size)
    recipe.sample.size = {width * factor, height * factor};
  try {
    check_model(recipe, recipe.network, dataset.classes(), "train");
  } catch (const Error& error) {
    throw Refusal(error.what());
  }
}

std::string recipe_text(Recipe recipe) {
  return io::write_toml(recipe);
}

std::vector<Change> changes(Recipe before, Recipe after) {
  const auto old_values = values_of(before), new_values = values_of(after);
  const std::map<std::string, std::string> had(old_values.begin(), old_values.end()),
      has(new_values.begin(), new_values.end());
  const auto value = [](const std::map<std::string, std::string>& values, const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::string("nothing") : found->second;
  };
  std::vector<Change> found;
  for (const auto& [name, text] : old_values)
    if (value(has, name) != text) found.push_back({name, text, value(has, name), !fixed(name)});
  for (const auto& [name, text] : new_values)  // which pictures do not have and clips have
    if (!had.contains(name)) found.push_back({name, "nothing", text, !fixed(name)});
  return found;
}

}  // namespace pom::train
