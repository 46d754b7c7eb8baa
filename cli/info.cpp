// `pom info`: what a network costs, what a model folder holds, which settings an image has.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/cost.h"
#include "cli/encoder_folder.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/json.h"
#ifdef POM_WITH_DATA
#include "cli/shard_folder.h"
#endif
#include "cli/source.h"
#include "cli/terminal.h"
#ifdef POM_WITH_TRAIN
#include "cli/training_table.h"
#endif
#include "cli/values.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"
#include "pom/codecs/words.h"
#include "pom/generate/folder.h"
#include "pom/generate/model_names.h"
#include "pom/generate/text_folder.h"
#include "pom/io/json_fields.h"
#include "pom/io/safetensors.h"
#include "pom/io/sha256.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
struct InfoOptions {
  std::string what, size, picture;
  std::optional<std::int64_t> classes, channels, steps;
  std::int64_t batch = 1, gpus = 0;
  bool json = false;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(
        Field{.name = "what",
              .help =
                  "a variant (DiPoM-S/2), a model folder, a recipe, the folder of an autoencoder, of a text "
                  "encoder or of shards; without it, a table of all variants",
              .value = "VARIANT|FOLDER|RECIPE",
              .group = "About"},
        what);
    visit(Field{.name = "picture", .help = "settings stored in this file", .value = "PNG", .group = "About"},
          picture);
    visit(Field{.name = "size",
                .help = "image size in pixels (default: 256x256, or the model's own)",
                .value = "WxH",
                .group = "Counted for"},
          size);
    visit(Field{.name = "batch",
                .help = "images at a time, for memory",
                .value = "N",
                .group = "Counted for",
                .least = 1,
                .most = 65536},
          batch);
    visit(Field{.name = "gpus",
                .help = "also the memory of training on N GPUs, by what they divide among them",
                .value = "N",
                .group = "Counted for",
                .least = 1,
                .most = 1e5},
          gpus);
    visit(Field{.name = "steps",
                .help = "steps of the sampler, for memory (default: 25, or the model's own)",
                .value = "N",
                .group = "Counted for",
                .least = 1,
                .most = 10000},
          steps);
    visit(Field{.name = "classes",
                .help = "classes of a variant (default: 1000)",
                .value = "N",
                .group = "Counted for",
                .least = 1,
                .most = 1e7},
          classes);
    visit(Field{.name = "channels",
                .help = "channels of a variant's latents (default: 4)",
                .value = "N",
                .group = "Counted for",
                .least = 1,
                .most = 4096},
          channels);
    visit(Field{.name = "json",
                .help = "one JSON object: parameters, macs, memory in bytes, …",
                .group = "Result"},
          json);
  }
};

void apply(const InfoOptions& options, Cost& cost) {
  if (options.classes) cost.network.classes = *options.classes;
  if (options.channels) cost.network.channels = *options.channels;
  if (options.steps) cost.steps = *options.steps;
  if (!options.size.empty()) {
    generate::Request request;
    as_usage([&] { generate::set_size(request, options.size); });
    cost.width = *request.width;
    cost.height = *request.height;
  }
  const std::int64_t unit = cost.factor * cost.network.patch;
  if (cost.width % unit != 0 || cost.height % unit != 0)
    throw UsageError(detail::concat("--size: ", cost.name, ": expected multiples of ", unit, ", got ",
                                    cost.width, "x", cost.height));
}

// Of what has a network and is no recipe.
void print_with_gpus(const Cost& cost, const InfoOptions& options) {
  print_cost(cost, options.batch);
#ifdef POM_WITH_TRAIN
  if (options.gpus > 0) print_training_table(cost, options.batch, options.gpus);
#endif
}

JsonObject json_with_gpus(const Cost& cost, const InfoOptions& options) {
  JsonObject json = cost_json(cost, options.batch);
#ifdef POM_WITH_TRAIN
  if (options.gpus > 0) json.add("training_memory", training_table_json(cost, options.batch, options.gpus));
#endif
  return json;
}

struct StoredWeights {
  std::string file, dtype, sha256;
  std::int64_t bytes = 0;
};

// Nothing where the folder has no weights yet.
std::optional<StoredWeights> stored_weights(const fs::path& folder) {
  const fs::path file = folder / generate::weights_file;
  if (!fs::exists(file)) return std::nullopt;
  StoredWeights weights;
  weights.file = file.filename().string();
  weights.bytes = static_cast<std::int64_t>(fs::file_size(file));
  const io::safetensors::Header header = io::safetensors::read_header(file);
  std::vector<std::string> dtypes;
  for (const io::safetensors::TensorInfo& tensor : header.tensors()) {
    const std::string name(io::safetensors::name(tensor.dtype));
    if (std::ranges::find(dtypes, name) == dtypes.end()) dtypes.push_back(name);
  }
  for (const std::string& name : dtypes) weights.dtype += (weights.dtype.empty() ? "" : ", ") + name;
  weights.sha256 = io::sha256_file(file);
  return weights;
}

struct StoredText {
  codecs::TextConfig config;
  std::vector<std::string> words = {};  // sorted
  std::string sha256 = {};
};

// Nothing where the model makes images, or its folder has no encoder yet.
std::optional<StoredText> stored_text(const fs::path& folder, const generate::ModelConfig& config) {
  if (!config.network.video() || !fs::exists(folder / codecs::text_folder)) return std::nullopt;
  if (config.text.kind != "words") return std::nullopt;  // its folder is somebody else's
  const io::safetensors::Reader file(folder / codecs::text_file);
  StoredText text{generate::stored_text_config(file)};
  const codecs::Words words = codecs::Words::open(text.config, file);
  text.words = words.vocabulary().words();
  std::ranges::sort(text.words);
  text.sha256 = words.hash();
  return text;
}

std::string with_commas(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + shown(name);
  return text;
}

// As many words as a screen has room for. No commas between them: one may be a word of the list.
std::string vocabulary_text(const std::vector<std::string>& words) {
  constexpr std::size_t most = 300;
  std::string text;
  for (std::size_t i = 0; i < std::min(words.size(), most); ++i) text += (i == 0 ? "" : " ") + words[i];
  if (words.size() > most)
    text += detail::concat(" … and ", words.size() - most, " more, which --json lists");
  return text;
}

// Of a model that makes clips.
void print_clips(const generate::ModelConfig& config, const std::optional<StoredText>& text) {
  const models::NetworkConfig& n = config.network;
  const generate::SampleDefaults& s = config.sample;
  std::string frames =
      s.frames > 0 ? detail::concat(s.frames, " frames") : std::string("any number of frames");
  if (s.fps > 0) frames += detail::concat(" at ", s.fps, " fps");
  print("  clips         " + frames + ", in blocks of " + std::to_string(n.patch_time));
  print("  a block sees  " +
        (!n.block_causal() ? std::string("all others: no stream")
         : n.window > 0    ? detail::concat("a window of ", n.window, " blocks, its own the last")
                           : std::string("all before it")) +
        (n.own_every > 0 ? detail::concat("; every ", n.own_every, ". layer: itself") : std::string()));
  const bool foreign = config.text.kind != "words";
  print(foreign ? detail::concat("  text          ", config.text.kind, ", at most ", config.text.limit,
                                 " pieces, ", config.text.width, " wide, padding ",
                                 config.text.mask ? "hidden" : "seen")
        : text  ? detail::concat("  text          words, ", text->words.size(), " of them, at most ",
                                 text->config.limit, " pieces, ", text->config.width, " wide")
                : detail::concat("  text          none: ", codecs::text_folder, " is missing"));
  if (text) print("  text sha256   " + text->sha256);
  if (text && !text->words.empty()) print("  vocabulary    " + wrap(vocabulary_text(text->words), 16, 16));
}

void print_folder(const generate::ModelConfig& config, const std::optional<StoredWeights>& weights) {
  const generate::SampleDefaults& s = config.sample;
  print("");
  print("  diffusion     " + config.diffusion.path +
        (config.diffusion.path == "epsilon" ? ", " + config.diffusion.variance + " variance" : ""));
  print("  codec         " + config.codec.kind);
  print(detail::concat("  samples with  ", steps_text(s.sampler, s.steps, s.shift), ", ",
                       guidance_text(s.cfg_scale, s.cfg_from, s.cfg_to)));
  print(weights ? "  weights       " + weights->file + ", " +
                      bytes_text(static_cast<double>(weights->bytes)) + ", " + weights->dtype
                : std::string("  weights       none: ") + generate::weights_file + " is missing");
  if (weights) print("  sha256        " + weights->sha256);
  if (!config.classes.empty()) print("  classes       " + wrap(with_commas(config.classes), 16, 16));
}

int folder_info(const InfoOptions& options) {
  generate::ModelConfig config = generate::read_config(options.what);
  Cost cost = folder_cost(options.what, config);
  if (options.classes || options.channels)
    throw UsageError("--classes and --channels are for variants; a model folder has its own");
  apply(options, cost);
  const std::optional<StoredWeights> weights = stored_weights(options.what);
  const std::optional<StoredText> text = stored_text(options.what, config);
  if (!options.json) {
    print_with_gpus(cost, options);
    print_folder(config, weights);
    if (config.network.video()) print_clips(config, text);
    print_encoders(options.what);
    return Exit::ok;
  }
  JsonObject result = json_with_gpus(cost, options);
  if (weights) result.add("sha256", weights->sha256).add("weights_dtype", weights->dtype);
  if (text)
    result.add("text", JsonObject()
                           .add("kind", text->config.kind)
                           .add("words", std::ssize(text->words))
                           .add("vocabulary", text->words)
                           .add("limit", text->config.limit)
                           .add("width", text->config.width)
                           .add("sha256", text->sha256));
  if (const std::vector<JsonObject> encoders = encoders_json(options.what); !encoders.empty())
    result.add("encoders", encoders);
  result.add("class_names", config.classes).raw("config", io::write_json(config));
  print(result.text());
  return Exit::ok;
}

int table(const InfoOptions& options) {
  std::vector<JsonObject> variants;
  std::vector<std::string> lines;
  for (const std::string& name : models::variant_names()) {
    Cost cost = variant_cost(name);
    apply(options, cost);
    variants.push_back(cost_json(cost, options.batch));
    const double parameters = static_cast<double>(cost.parameters());
    lines.push_back(columns("%-14s%12s%15s%10s", name, amount_text(parameters),
                            amount_text(static_cast<double>(cost.macs())), std::to_string(cost.tokens())));
  }
  if (options.json) {
    print(JsonObject().add("variants", variants).text());
    return Exit::ok;
  }
  print(bold(columns("%-14s%12s%15s%10s", "variant", "parameters", "multiply-adds", "tokens"), 1));
  for (const std::string& line : lines) print(line);
  print("for one evaluation of one image of " + (options.size.empty() ? "256x256" : options.size) +
        " pixels; memory: pom info VARIANT");
  return Exit::ok;
}

int picture_info(const InfoOptions& options) {
  const Source source = read_source(options.picture);
  const generate::Origin& origin = source.origin;
  generate::Request request = source.request();
  if (options.json) {
    print(JsonObject()
              .add("model", JsonObject().add("name", origin.model).add("sha256", origin.model_hash))
              .add("version", origin.version)
              .add("sheet", source.sheet.has_value())
              .raw("request", generate::request_json(request))
              .text());
    return Exit::ok;
  }
  const auto line = [](std::string_view name, const auto& value) {
    std::string text(name);
    text.resize(std::max<std::size_t>(text.size() + 1, 12), ' ');
    print(detail::concat(text, value));
  };
  line("model", shown(origin.model));
  line("sha256", origin.model_hash);
  line("libpom", shown(origin.version));
  request.fields([&](const Field& field, auto& value) {
    const auto one = [&](const auto& each) {
      if constexpr (requires { std::string_view(each); })
        line(field.name, shown(each));
      else
        line(field.name, each);
    };
    if (!field.saved) return;
    if constexpr (requires { value.has_value(); }) {
      if (value) one(*value);
    } else if constexpr (
        requires { value.begin() == value.end(); } && !requires { std::string_view(value); }) {
      for (const auto& each : value) one(each);
    } else {
      one(value);
    }
  });
  return Exit::ok;
}

bool is_variant(const std::string& name) {
  const std::vector<std::string>& names = models::variant_names();
  return std::ranges::any_of(names, [&](const std::string& each) { return edit_distance(each, name) == 0; });
}

int info(InfoOptions& options) {
  if (!options.picture.empty()) {
    if (!options.what.empty())
      throw UsageError("--picture: cannot be combined with \"" + options.what + "\"");
    return picture_info(options);
  }
  if (options.what.empty()) return table(options);
  if (!is_variant(options.what)) {
#ifdef POM_WITH_TRAIN
    if (fs::is_regular_file(options.what) && options.what.ends_with(".toml"))
      return recipe_info(options.what, std::max<std::int64_t>(1, options.gpus), options.json);
#endif
    if (fs::is_regular_file(options.what))
      throw UsageError(options.what + " is a file: pom info --picture " + options.what +
                       " shows the settings stored in it");
    const std::vector<std::string> near = nearest_names(options.what, models::variant_names(), 1);
    const bool path = options.what.find('/') != std::string::npos;
    if (!fs::exists(options.what) && (path || !near.empty()))
      throw UsageError("\"" + options.what + "\" is neither a variant nor a folder; " +
                       (near.empty() ? "pom info lists the variants" : "did you mean " + near.front() + "?"));
    if (is_encoder_folder(options.what)) return encoder_folder_info(options.what, options.json);
#ifdef POM_WITH_DATA
    if (is_shard_folder(options.what)) {
      tell_shards(options.what, options.json);
      return Exit::ok;
    }
#endif
    options.what = as_usage([&] { return generate::model_folder(options.what, "info"); }).string();
    return folder_info(options);
  }
  Cost cost = variant_cost(options.what);
  apply(options, cost);
  if (options.json)
    print(json_with_gpus(cost, options).text());
  else
    print_with_gpus(cost, options);
  return Exit::ok;
}

Action declare_info(Flags& flags) {
  const auto options = std::make_shared<InfoOptions>();
  flags.positional("what");
  flags.add(*options);
  return [options] { return info(*options); };
}

}  // namespace

Command info_command() {
  return {
      .name = "info",
      .summary = "cost of a network, contents of a model, settings of an image",
      .usage = "info [VARIANT|FOLDER|RECIPE] [flags]\n  pom info --picture PNG",
      .about =
          "Parameters, multiply-adds (of one evaluation of the network for one image) and memory of a "
          "named variant or of a model folder, or the settings stored in an image. Nothing is sampled.\n"
          "\n"
          "Of a folder that diffusers or transformers wrote (an AutoencoderKL, CogVideoX's autoencoder, a T5 "
          "encoder), or of one with shards of pom encode: what it is, and the hash by which they know each "
          "other.\n"
          "\n"
          "Variants are counted as the paper does: 1000 classes, and latents of an autoencoder with 4 "
          "channels and an eighth of the image's sides.",
      .examples =
          "pom info\n"
          "pom info DiPoM-XL/2 --size 512x512\n"
          "pom info recipes/imagenet-xl2.toml --gpus 8\n"
          "pom info assets/shapes64 --json\n"
          "pom info --picture circle.png",
      .declare = declare_info,
  };
}

}  // namespace pom::cli
