#include "pom/train/model_folder.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "pom/base/error.h"
#include "pom/codecs/words.h"
#include "pom/data/dataset.h"
#include "pom/generate/engine.h"
#include "pom/generate/model_files.h"
#include "pom/io/folder_swap.h"
#include "pom/io/sheet.h"
#include "pom/io/toml_fields.h"
#include "pom/train/encoders.h"
#include "pom/train/refusal.h"
#include "pom/train/training_model.h"

namespace pom::train {
namespace {

constexpr std::int64_t classes_on_sheet = 10, captions_on_sheet = 16;

// Whether weights of a network that differs in this field alone do not fit, or mean something else.
bool decides_weights(const models::NetworkConfig& network, std::string_view field) {
  if (field == "order" || field == "order_expand") return !network.attention();
  if (field == "heads") return network.attention();
  if (field == "classes") return !network.video();
  if (field == "patch_time" || field == "text_width" || field == "no_text") return network.video();
  constexpr std::array<std::string_view, 12> always = {
      "kind",       "mixer",    "dim",           "depth",      "patch", "channels",
      "ffw_expand", "position", "time_features", "time_input", "gelu",  "learned_variance"};
  return std::ranges::find(always, field) != always.end();
}

// "\n  network.depth: 8 in the model, 2 in the recipe" for each field that differs.
template <class Config, class Matters>
std::string differences(Config model, Config recipe, std::string_view table, Matters&& matters) {
  const std::vector<BoundField> theirs = bind_fields(model), ours = bind_fields(recipe);
  std::string text;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const std::string before = io::toml_value(theirs[i]), now = io::toml_value(ours[i]);
    if (before != now && matters(ours[i].field.name))
      text += detail::concat("\n  ", table, ".", ours[i].field.name, ": ", before, " in the model, ", now,
                             " in the recipe");
  }
  return text;
}

void refuse_another(const std::filesystem::path& folder, const generate::ModelConfig& model,
                    const Recipe& recipe) {
  std::string text = differences(model.network, recipe.network, "network", [&](std::string_view field) {
    return decides_weights(recipe.network, field);
  });
  if (model.network.video() && recipe.network.video())
    text += differences(model.text, recipe.text, "text", [](std::string_view) { return true; });
  refuse_unless(text.empty(), "train: --init-from ", folder.string(),
                ": expected a model with the network of the recipe, got another:", text);
}

}  // namespace

void write_model(const std::filesystem::path& folder, const Recipe& recipe,
                 const std::vector<std::string>& classes, const models::Weights& average,
                 const std::string& words) {
  generate::ModelConfig config;
  config.name = recipe.run.name;
  config.network = recipe.network;
  config.diffusion = recipe.diffusion;
  config.codec = recipe.codec;
  config.text = recipe.text;
  config.sample = recipe.sample;
  config.classes = classes;
  generate::check_config(config, (folder / generate::config_file).string() + ": ");
  io::FolderSwap swap(folder);
  generate::write_config(swap.folder(), config);
  if (recipe.network.video() && recipe.text.kind == "words") {
    codecs::Words encoder(recipe.text, codecs::WordPieces::from_lines(words));
    encoder.set_weights(text_part(average));
    encoder.save(swap.folder() / codecs::text_folder);
  }
  add_encoders(swap.folder(), folder, recipe);
  models::write_weights(swap.folder() / generate::weights_file, network_part(average),
                        recipe.log.model_dtype == "fp32" ? at::kFloat : at::kBFloat16);
  swap.commit();
}

FirstWeights first_weights(const std::filesystem::path& folder, const Recipe& recipe) {
  generate::ModelFiles files = generate::open_model(folder);
  const generate::ModelConfig& config = files.config;
  const models::NetworkConfig& network = recipe.network;
  refuse_another(folder, config, recipe);
  FirstWeights first{files.weights.take(), {}};
  for (auto& [name, tensor] : first.weights) tensor = tensor.to(at::kFloat);
  models::check_weights(first.weights, network, "train: --init-from " + folder.string());
  if (!network.video() || recipe.text.kind != "words") return first;
  const codecs::Words encoder = codecs::Words::open(recipe.text, *files.text);
  for (const auto& [name, tensor] : encoder.weights()) first.weights[text_name(name)] = tensor;
  first.words = encoder.vocabulary().lines();
  return first;
}

namespace {

// Images for captions of scenes that training never draws.
io::Image caption_sheet(generate::Engine& engine, const Recipe& recipe) {
  data::DataConfig data = recipe.data;
  data.validation = captions_on_sheet;
  const data::Split split = data::open_dataset(data, static_cast<std::uint64_t>(recipe.run.seed));
  generate::Request request;
  for (std::int64_t i = 0; i < captions_on_sheet; ++i)
    request.prompt.push_back(split.validation->get(i, 0).caption);
  request.count = recipe.log.sample_count;
  io::SheetOptions options;
  options.columns = static_cast<int>(std::min<std::int64_t>(4 * recipe.log.sample_count, 16));
  options.scale = static_cast<int>(std::max<std::int64_t>(192 / recipe.data.size[0], 1));
  options.label_lines = 5;
  const generate::Job job = engine.resolve(request);
  for (const generate::Request& item : job.items) options.labels.push_back(item.subject());
  return io::make_sheet(engine.images(job), options);
}

}  // namespace

io::Image sample_sheet(const std::filesystem::path& folder, const Recipe& recipe, const at::Device& device) {
  generate::Engine engine(folder, device.str());
  if (recipe.network.video()) return caption_sheet(engine, recipe);
  generate::Request request;
  const std::int64_t classes = std::min(recipe.network.classes, classes_on_sheet);
  request.class_name = detail::concat("0-", classes - 1);
  request.count = recipe.log.sample_count;
  io::SheetOptions options;
  options.columns = static_cast<int>(recipe.log.sample_count);
  const generate::Job job = engine.resolve(request);
  for (std::size_t i = 0; i < job.items.size(); i += static_cast<std::size_t>(recipe.log.sample_count))
    options.row_labels.push_back(job.items[i].subject());
  return io::make_sheet(engine.images(job), options);
}

std::string sheet_name(std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step_%08lld.png", static_cast<long long>(step));
  return name;
}

}  // namespace pom::train
