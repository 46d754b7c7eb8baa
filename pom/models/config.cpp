#include "pom/models/config.h"

#include <array>
#include <type_traits>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"

namespace pom::models {
namespace {

// The paper's sizes. The published DiPoM configurations narrow the feed-forward; DiT has 4 throughout.
struct Size {
  std::string_view name;
  std::int64_t depth, dim, pom_ffw, heads;
};
constexpr std::array<Size, 4> kSizes{
    {{"S", 12, 384, 3, 6}, {"B", 12, 768, 3, 12}, {"L", 24, 1024, 2, 16}, {"XL", 28, 1152, 2, 16}}};
constexpr std::array<std::int64_t, 3> kPatches{2, 4, 8};
constexpr std::int64_t kDitFfw = 4;

// The paper has XL alone. Blocks have two mixers, so there are fewer of them than in a network of pictures.
constexpr std::array<Size, 4> kVideoSizes{
    {{"S", 12, 384, 4, 6}, {"B", 12, 768, 4, 12}, {"L", 16, 1024, 4, 16}, {"XL", 20, 1152, 4, 16}}};
constexpr std::int64_t kVideoPatch = 2;      // in time and space
constexpr std::int64_t kVideoChannels = 16;  // of CogVideoX's autoencoder

NetworkConfig make_variant(const Size& size, std::int64_t patch, bool attention) {
  NetworkConfig config;
  config.variant = detail::concat(attention ? "DiT-" : "DiPoM-", size.name, "/", patch);
  config.depth = size.depth;
  config.dim = size.dim;
  config.patch = patch;
  config.heads = size.heads;
  config.mixer = attention ? "attention" : "pom";
  config.ffw_expand = attention ? kDitFfw : size.pom_ffw;
  return config;
}

NetworkConfig make_video_variant(const Size& size, bool attention) {
  NetworkConfig config = make_variant(size, kVideoPatch, attention);
  config.variant = "V-" + config.variant;
  config.kind = "vdipom";
  config.patch_time = kVideoPatch;
  config.channels = kVideoChannels;
  return config;
}

const std::vector<NetworkConfig>& table() {
  static const std::vector<NetworkConfig> variants = [] {
    std::vector<NetworkConfig> all;
    for (const bool attention : {false, true})
      for (const Size& size : kSizes)
        for (const std::int64_t patch : kPatches) all.push_back(make_variant(size, patch, attention));
    for (const bool attention : {false, true})
      for (const Size& size : kVideoSizes) all.push_back(make_video_variant(size, attention));
    return all;
  }();
  return variants;
}

}  // namespace

const std::vector<std::string>& variant_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const NetworkConfig& config : table()) all.push_back(config.variant);
    return all;
  }();
  return names;
}

NetworkConfig variant(std::string_view name) {
  for (const NetworkConfig& config : table())
    if (same_letters(config.variant, name)) return config;
  fail("network: variant: unknown name \"", shown(name), "\"", suggestion(name, variant_names()));
}

namespace {

// What the networks of clips have no form of.
void check_plain(const NetworkConfig& config, std::string_view where) {
  const auto plain = [&](std::string_view field, const auto& expected, const auto& got) {
    check(expected == got, where, field, ": expected ", expected, " for clips, got ", got);
  };
  check(config.position != "dit", where, "position: expected odd or narrow for clips, got dit");
  plain("time_features", 0, config.time_features);
  plain("time_input", "1000t", config.time_input);
  plain("gelu", "erf", config.gelu);
  check(!config.learned_variance, where, "learned_variance: expected false for clips, got true");
}

void check_video(const NetworkConfig& config, std::string_view where) {
  check_plain(config, where);
  check(config.dim >= 8, where, "dim: expected at least 8 (the position code has three axes), got ",
        config.dim);
  check(config.position != "narrow" || config.dim % 8 == 0, where,
        "dim: expected a multiple of 8 with the position code narrow (half of the channels are the time), ",
        "got ", config.dim);
  check(config.no_text != "mask" || !config.attention(), where,
        "no_text: expected token with attention, which has no answer where nothing can be seen, got ",
        config.no_text);
  check(config.window == 0 || config.block_causal(), where,
        "window: expected 0 without a block-causal mask, ", "got ", config.window);
  check(config.own_every == 0 || (config.own_every >= 2 && config.block_causal()), where,
        "own_every: expected 0, or at least 2 with a block-causal mask (one layer has to see other blocks), ",
        "got ", config.own_every);
}

}  // namespace

void check_config(const NetworkConfig& config, std::string_view where) {
  NetworkConfig copy = config;  // fields() hands out references that may be written
  copy.fields([&]<class Value>(const Field& field, const Value& value) {
    if constexpr (!std::is_same_v<Value, bool>) check_value(field, value, where);
  });
  check(config.dim % 4 == 0, where,
        "dim: expected a multiple of 4 (the position code has sine and cosine of two axes), got ",
        config.dim);
  check(!config.attention() || config.dim % config.heads == 0, where,
        "heads: expected a divisor of dim = ", config.dim, ", got ", config.heads);
  check(config.time_features % 2 == 0, where,
        "time_features: expected an even number (cosines and sines), got ", config.time_features);
  if (config.video()) check_video(config, where);
  if (config.variant.empty()) return;
  const NetworkConfig named = variant(config.variant);
  const auto agree = [&](std::string_view field, const auto& expected, const auto& got) {
    check(expected == got, where, field, ": expected ", expected, ", as the variant ", named.variant,
          " has, got ", got, "; leave \"variant\" out for a network of another size");
  };
  agree("kind", named.kind, config.kind);
  agree("dim", named.dim, config.dim);
  agree("depth", named.depth, config.depth);
  agree("patch", named.patch, config.patch);
  if (config.video()) agree("patch_time", named.patch_time, config.patch_time);
  agree("mixer", named.mixer, config.mixer);
  if (config.attention()) agree("heads", named.heads, config.heads);
}

}  // namespace pom::models
