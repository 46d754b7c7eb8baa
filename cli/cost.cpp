#include "cli/cost.h"

#include <cstdio>
#include <filesystem>

#include <c10/core/ScalarType.h>

#include "cli/help.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/codecs/codec.h"
#include "pom/models/counts.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;
using models::NetworkConfig;

struct DtypeName {
  const char* name;
  at::ScalarType dtype;
};
constexpr DtypeName kDtypes[] = {{"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};

std::int64_t sampling_bytes(const Cost& cost, at::ScalarType dtype, bool guided, std::int64_t batch) {
  const models::SamplingMemory memory = models::sampling_memory(
      cost.network, cost.latent_height(), cost.latent_width(), dtype, guided, cost.steps);
  return memory.weights + memory.fixed + batch * memory.per_picture;
}

std::int64_t training_bytes(const Cost& cost, at::ScalarType dtype, std::int64_t batch) {
  return models::training_memory(cost.network, cost.latent_height(), cost.latent_width(), dtype, batch);
}

JsonObject memory_json(const Cost& cost, std::int64_t batch) {
  JsonObject sampling, training;
  for (const DtypeName& each : kDtypes) {
    sampling.add(each.name, JsonObject()
                                .add("unguided", sampling_bytes(cost, each.dtype, false, batch))
                                .add("guided", sampling_bytes(cost, each.dtype, true, batch)));
    training.add(each.name, training_bytes(cost, each.dtype, batch));
  }
  return JsonObject().add("batch", batch).add("sampling", sampling).add("training", training);
}

template <class Bytes>
std::string memory_row(const std::string& title, Bytes&& bytes) {
  std::string cells[3];
  for (int i = 0; i < 3; ++i) cells[i] = bytes_text(static_cast<double>(bytes(kDtypes[i].dtype)));
  return columns("  %-18s%12s%12s%12s", title, cells[0], cells[1], cells[2]);
}

std::string network_text(const NetworkConfig& n) {
  const std::string mixer =
      n.attention() ? detail::concat("attention of ", n.heads, " heads")
                    : detail::concat("Polynomial Mixer of order ", n.order, ", expansion ", n.order_expand);
  const std::string patch =
      n.video() ? detail::concat(n.patch_time, "x", n.patch, "x", n.patch) : std::to_string(n.patch);
  return detail::concat(n.depth, " blocks of width ", n.dim, ", patch ", patch, ", ", mixer,
                        ", feed-forward ", n.ffw_expand);
}

}  // namespace

std::int64_t Cost::parameters() const {
  return models::count_parameters(network);
}

std::int64_t Cost::macs() const {
  return models::count_macs(network, latent_height(), latent_width());
}

std::string columns(const char* pattern, const std::string& a, const std::string& b, const std::string& c,
                    const std::string& d) {
  char text[160];
  std::snprintf(text, sizeof text, pattern, a.c_str(), b.c_str(), c.c_str(), d.c_str());
  return text;
}

Cost variant_cost(const std::string& name) {
  const NetworkConfig network = models::variant(name);
  return {.name = network.variant, .network = network};
}

// Of a model folder, whose autoencoder may be missing.
std::int64_t codec_factor(const std::string& folder, const generate::ModelConfig& config) {
  const io::OpenFolder opened(folder, "info");
  return codecs::make_codec(config.codec, config.network.channels, &opened)->factor();
}

Cost folder_cost(const std::string& folder, const generate::ModelConfig& config) {
  return {.name = config.name.empty() ? fs::weakly_canonical(folder).filename().string() : config.name,
          .network = config.network,
          .width = config.sample.size.at(0),
          .height = config.sample.size.at(1),
          .factor = codec_factor(folder, config),
          .steps = config.sample.steps};
}

JsonObject cost_json(const Cost& cost, std::int64_t batch) {
  const NetworkConfig& network = cost.network;
  return JsonObject()
      .add("name", cost.name)
      .add("parameters", cost.parameters())
      .add("macs", cost.macs())
      .add("memory", memory_json(cost, batch))
      .add("size", std::vector{cost.width, cost.height})
      .add("latent", std::vector{network.channels, cost.latent_height(), cost.latent_width()})
      .add("tokens", cost.tokens())
      .add("classes", network.classes);
}

void print_cost(const Cost& cost, std::int64_t batch) {
  const std::int64_t parameters = cost.parameters(), macs = cost.macs();
  const std::string condition = cost.network.video()
                                    ? detail::concat("text ", cost.network.text_width, " wide")
                                    : detail::concat(cost.network.classes, " classes");
  print(bold(shown(cost.name), 1));
  print("  network       " + wrap(network_text(cost.network), 16, 16));
  print(detail::concat(cost.network.video() ? "  block         " : "  image         ", cost.width, "x",
                       cost.height, ", latent ", cost.latent_width(), "x", cost.latent_height(), " of ",
                       cost.network.channels, " channels, ", cost.tokens(), " tokens, ", condition));
  print("  parameters    " + grouped(parameters) + " (" + amount_text(static_cast<double>(parameters)) + ")");
  print("  multiply-adds " + grouped(macs) + " (" + amount_text(static_cast<double>(macs)) +
        ") for one evaluation of one " + (cost.network.video() ? "block of frames" : "image"));
  print("");
  print(columns("  %-18s%12s%12s%12s", detail::concat("memory, batch ", batch), "fp32", "bf16", "fp16"));
  print(memory_row("sampling", [&](auto dtype) { return sampling_bytes(cost, dtype, false, batch); }));
  print(memory_row("sampling, guided", [&](auto dtype) { return sampling_bytes(cost, dtype, true, batch); }));
  print(memory_row("training", [&](auto dtype) { return training_bytes(cost, dtype, batch); }));
}

}  // namespace pom::cli
