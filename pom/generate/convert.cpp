#include "pom/generate/convert.h"

#include "pom/base/error.h"
#include "pom/generate/set_field.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLatentFactor = 8;  // pixels to a latent pixel, of both autoencoders

// ---- fields that are given ----

models::KnownFields network_fields(const ModelConfig& config, const std::set<std::string>& given) {
  constexpr std::string_view table = "network.";
  models::KnownFields known{.network = config.network, .given = {}};
  for (const std::string& field : given)
    if (field.starts_with(table)) known.given.insert(field.substr(table.size()));
  return known;
}

// ---- what belongs to a network beside its weights ----

void set_codec(ModelConfig& config, bool clips) {
  const std::int64_t channels = config.network.channels;
  if (channels == 1 || channels == 3) return;  // of pixels
  config.codec.kind = clips ? "cogvideox" : "autoencoder-kl";
  config.codec.scale = clips ? 1 : 0.18215;  // the authors' clips are latents as they are
}

void set_size(ModelConfig& config, std::int64_t side, std::int64_t grid) {
  const std::int64_t factor = config.codec.kind == "pixels" ? 1 : kLatentFactor;
  if (grid > 0) side = grid * config.network.patch * factor;
  config.sample.size = {side, side};
}

void set_sampler(SampleDefaults& sample, const char* sampler, std::int64_t steps, double cfg_scale) {
  sample.sampler = sampler, sample.steps = steps, sample.cfg_scale = cfg_scale;
}

// Guidance of the authors is c + ω(c − u), so that the scale is 1 + ω.
void set_authors_defaults(ModelConfig& config, models::Origin origin) {
  const bool flow = config.diffusion.path == "flow", clips = origin == models::Origin::homm_text2video;
  const double scale = 1 + (clips ? 2.0 : 0.7);
  set_sampler(config.sample, flow ? "heun" : "ddim", flow ? 125 : 250, scale);
  if (origin == models::Origin::homm_upscale) config.sample.shift_base = 256;
  if (!clips) return;
  config.sample.size = {384, 240}, config.sample.frames = 80, config.sample.fps = 16;
  config.text.kind = "t5", config.text.width = config.network.text_width, config.text.limit = 64;
}

void set_official_defaults(ModelConfig& config, models::Origin origin) {
  if (origin == models::Origin::dit) {
    config.diffusion = {"epsilon", "ddpm-linear"};
    set_sampler(config.sample, "ddpm", 250, 4);
  } else {
    config.diffusion.path = "flow";
    set_sampler(config.sample, "heun", 125, 4);
  }
  if (config.network.channels > 3) config.sample.guidance_channels = 3;
}

ModelConfig defaults_of(const models::Imported& network, const ConvertOptions& options,
                        const ModelConfig& given, const std::set<std::string>& fields) {
  ModelConfig config;
  config.network = network.config;
  const models::Origin origin = options.origin;
  set_codec(config, origin == models::Origin::homm_text2video);
  set_size(config, origin == models::Origin::homm_upscale ? 512 : 256, network.grid);
  if (origin == models::Origin::dit || origin == models::Origin::sit) {
    set_official_defaults(config, origin);
    return config;
  }
  config.diffusion.path = fields.contains("diffusion.path") ? given.diffusion.path
                          : origin == models::Origin::homm  ? "epsilon"
                                                            : "flow";
  set_authors_defaults(config, origin);
  return config;
}

}  // namespace

ConvertedModel convert_model(const fs::path& source, const ConvertOptions& options) {
  ModelConfig given;
  const std::set<std::string> fields = set_json_fields(options.set, given);
  const io::safetensors::Reader file(source);
  models::Imported network =
      models::import_network(file, options.origin, network_fields(given, fields), options.copy);
  ConvertedModel model{defaults_of(network, options, given, fields),
                       std::move(network.weights),
                       network.copy,
                       network.prefix,
                       network.grid,
                       std::move(network.notes)};
  set_json_fields(options.set, model.config);
  check_config(model.config, "convert: ");
  if (options.origin == models::Origin::homm && !fields.contains("diffusion.path"))
    model.notes.push_back(
        "diffusion.path = epsilon, the authors' default: the weights do not tell; --set diffusion.path=flow "
        "for a run with mode=fm");
  return model;
}

void write_converted(const fs::path& folder, const ConvertedModel& model) {
  io::FolderSwap swap(folder);
  write_config(swap.folder(), model.config);
  models::write_weights(swap.folder() / weights_file, model.weights, std::nullopt);
  swap.commit();
}

models::Weights weights_for(const fs::path& path, models::Origin origin) {
  return io::read_folder(path, "model folder", [&](const io::OpenFolder& folder) {
    const ModelConfig config = read_config(folder);
    check(folder.has(weights_file), "model folder: ", folder.path().string(), ": no ", weights_file);
    const io::safetensors::Reader file(folder, weights_file);
    models::Weights weights = models::read_weights(file, config.network, std::nullopt);
    const models::StateDict stored(file, {"ema.", "model.", "", {}}, models::WeightCopy::best);
    if (stored.has("freqs")) weights["freqs"] = stored.read("freqs");
    const std::int64_t factor = config.codec.kind == "pixels" ? 1 : kLatentFactor;
    const std::int64_t grid = config.sample.size[0] / (factor * config.network.patch);
    return models::export_network(weights, config.network, origin, grid);
  });
}

}  // namespace pom::generate
