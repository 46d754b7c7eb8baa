#include "pom/codecs/t5_config.h"

#include <algorithm>
#include <cmath>

#include "pom/base/error.h"
#include "pom/io/json_fields.h"

namespace pom::codecs {

T5Config read_t5_config(std::string_view json, std::string_view source) {
  T5Config config;
  io::read_json(json, config, source, io::JsonOrigin::foreign);
  const std::int64_t exact = config.relative_attention_num_buckets / 4;
  check(config.relative_attention_max_distance > exact, source,
        ": relative_attention_max_distance: expected more than a quarter of the buckets, ", exact, ", got ",
        config.relative_attention_max_distance);
  return config;
}

std::vector<TensorSpec> t5_tensors(const T5Config& c) {
  std::vector<TensorSpec> tensors{{"shared.weight", {c.vocab_size, c.d_model}}};
  for (std::int64_t block = 0; block < c.num_layers; ++block) {
    const std::string of = "encoder.block." + std::to_string(block) + ".layer.";
    const std::string attention = of + "0.SelfAttention.", dense = of + "1.DenseReluDense.";
    for (const char* name : {"q", "k", "v"})
      tensors.push_back({attention + name + ".weight", {c.inner(), c.d_model}});
    tensors.push_back({attention + "o.weight", {c.d_model, c.inner()}});
    if (block == 0)  // for all of them
      tensors.push_back(
          {attention + "relative_attention_bias.weight", {c.relative_attention_num_buckets, c.num_heads}});
    tensors.push_back({of + "0.layer_norm.weight", {c.d_model}});
    if (c.gated())
      for (const char* name : {"wi_0", "wi_1"})
        tensors.push_back({dense + name + ".weight", {c.d_ff, c.d_model}});
    else
      tensors.push_back({dense + "wi.weight", {c.d_ff, c.d_model}});
    tensors.push_back({dense + "wo.weight", {c.d_model, c.d_ff}});
    tensors.push_back({of + "1.layer_norm.weight", {c.d_model}});
  }
  tensors.push_back({"encoder.final_layer_norm.weight", {c.d_model}});
  return tensors;
}

// Half of the buckets are for keys after the query. Of a half, the first half has one distance each, the
// others grow to the largest distance by equal ratios; where a bucket begins at a whole distance, a logarithm
// in single precision would miss it now and then.
std::vector<std::int64_t> t5_buckets(const T5Config& config, std::int64_t length) {
  const std::int64_t half = config.relative_attention_num_buckets / 2, exact = half / 2;
  const double range =
      std::log(static_cast<double>(config.relative_attention_max_distance) / static_cast<double>(exact));
  std::vector<std::int64_t> buckets(static_cast<std::size_t>(2 * length - 1));
  for (std::int64_t delta = 1 - length; delta < length; ++delta) {
    const std::int64_t distance = std::abs(delta);
    std::int64_t bucket = distance;
    if (distance >= exact) {
      const double share = std::log(static_cast<double>(distance) / static_cast<double>(exact)) / range;
      const double steps = std::floor(share * static_cast<double>(half - exact) + 1e-9);
      bucket = exact + static_cast<std::int64_t>(std::min(steps, static_cast<double>(half - exact - 1)));
    }
    buckets[static_cast<std::size_t>(delta + length - 1)] = bucket + (delta > 0 ? half : 0);
  }
  return buckets;
}

}  // namespace pom::codecs
