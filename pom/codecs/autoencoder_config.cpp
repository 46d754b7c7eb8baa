#include "pom/codecs/autoencoder_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "pom/base/error.h"
#include "pom/io/json_fields.h"

namespace pom::codecs {
namespace {

// Gathers names with their shapes, as diffusers calls them.
class AutoencoderSpecs {
 public:
  explicit AutoencoderSpecs(const AutoencoderConfig& config) : config_(config) {}

  void conv(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t kernel) {
    add(name, {out, in, kernel, kernel});
  }
  void norm(const std::string& name, std::int64_t channels) { add(name, {channels}); }
  void linear(const std::string& name, std::int64_t in, std::int64_t out) { add(name, {out, in}); }
  void resnet(const std::string& name, std::int64_t in, std::int64_t out) {
    norm(name + ".norm1", in);
    conv(name + ".conv1", in, out, 3);
    norm(name + ".norm2", out);
    conv(name + ".conv2", out, out, 3);
    if (in != out) conv(name + ".conv_shortcut", in, out, 1);
  }
  void middle(const std::string& name, std::int64_t channels) {
    resnet(name + ".resnets.0", channels, channels);
    resnet(name + ".resnets.1", channels, channels);
    if (!config_.mid_block_add_attention) return;
    norm(name + ".attentions.0.group_norm", channels);
    for (const char* part : {".to_q", ".to_k", ".to_v", ".to_out.0"})
      linear(name + ".attentions.0" + part, channels, channels);
  }
  std::vector<TensorSpec> take() { return std::move(all_); }

 private:
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    all_.push_back({name + ".bias", {shape[0]}});
    all_.push_back({name + ".weight", std::move(shape)});
  }

  const AutoencoderConfig& config_;
  std::vector<TensorSpec> all_;
};

void encoder_tensors(AutoencoderSpecs& specs, const AutoencoderConfig& c) {
  const std::vector<std::int64_t>& widths = c.block_out_channels;
  specs.conv("encoder.conv_in", c.in_channels, widths.front(), 3);
  std::int64_t in = widths.front();
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const std::string level = "encoder.down_blocks." + std::to_string(i);
    for (std::int64_t j = 0; j < c.layers_per_block; ++j)
      specs.resnet(level + ".resnets." + std::to_string(j), std::exchange(in, widths[i]), widths[i]);
    if (i + 1 < widths.size()) specs.conv(level + ".downsamplers.0.conv", in, in, 3);
  }
  specs.middle("encoder.mid_block", in);
  specs.norm("encoder.conv_norm_out", in);
  specs.conv("encoder.conv_out", in, 2 * c.latent_channels, 3);
  if (c.use_quant_conv) specs.conv("quant_conv", 2 * c.latent_channels, 2 * c.latent_channels, 1);
}

void decoder_tensors(AutoencoderSpecs& specs, const AutoencoderConfig& c) {
  const std::vector<std::int64_t> widths(c.block_out_channels.rbegin(), c.block_out_channels.rend());
  if (c.use_post_quant_conv) specs.conv("post_quant_conv", c.latent_channels, c.latent_channels, 1);
  specs.conv("decoder.conv_in", c.latent_channels, widths.front(), 3);
  specs.middle("decoder.mid_block", widths.front());
  std::int64_t in = widths.front();
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const std::string level = "decoder.up_blocks." + std::to_string(i);
    for (std::int64_t j = 0; j <= c.layers_per_block; ++j)
      specs.resnet(level + ".resnets." + std::to_string(j), std::exchange(in, widths[i]), widths[i]);
    if (i + 1 < widths.size()) specs.conv(level + ".upsamplers.0.conv", in, in, 3);
  }
  specs.norm("decoder.conv_norm_out", in);
  specs.conv("decoder.conv_out", in, c.out_channels, 3);
}

void check_latent_numbers(const std::vector<double>& numbers, const AutoencoderConfig& c, const char* name,
                          const std::string& source) {
  check(numbers.empty() || static_cast<std::int64_t>(numbers.size()) == c.latent_channels, source, ": ", name,
        ": expected null or ", c.latent_channels, " numbers, one for each latent channel, got ",
        numbers.size());
  for (const double number : numbers)
    check(std::isfinite(number) && (std::string(name) != "latents_std" || number > 0), source, ": ", name,
          ": expected finite numbers", std::string(name) == "latents_std" ? " above 0" : "", ", got ",
          number);
}

}  // namespace

AutoencoderConfig read_autoencoder_config(const std::string& text, const std::string& source) {
  AutoencoderConfig c;
  io::read_json(text, c, source, io::JsonOrigin::foreign);
  c.latents_mean = io::read_json_numbers(text, "latents_mean", source);
  c.latents_std = io::read_json_numbers(text, "latents_std", source);
  constexpr std::size_t most_levels = 16;
  const std::size_t levels = c.block_out_channels.size();
  check(levels >= 1 && levels <= most_levels, source, ": block_out_channels: expected 1 to ", most_levels,
        " levels, got ", levels);
  for (const auto& [name, kinds] :
       {std::pair("down_block_types", &c.down_block_types), std::pair("up_block_types", &c.up_block_types)})
    check(kinds->size() == levels, source, ": ", name, ": expected ", levels,
          " of them, as many as block_out_channels, got ", kinds->size());
  for (const std::int64_t width : c.block_out_channels)
    check(width % c.norm_num_groups == 0, source,
          ": block_out_channels: expected multiples of norm_num_groups, ", c.norm_num_groups, ", got ",
          width);
  check(!c.sample_size.empty(), source, ": sample_size: expected a side, got an empty list");
  check_latent_numbers(c.latents_mean, c, "latents_mean", source);
  check_latent_numbers(c.latents_std, c, "latents_std", source);
  return c;
}

std::vector<TensorSpec> autoencoder_tensors(const AutoencoderConfig& config) {
  AutoencoderSpecs specs(config);
  encoder_tensors(specs, config);
  decoder_tensors(specs, config);
  return specs.take();
}

WeightRules autoencoder_rules() {
  WeightRules rules;
  rules.squeeze = true;  // (C, C, 1, 1) for (C, C)
  rules.renamed = [](const std::string& name) {
    using Pair = std::pair<std::string_view, std::string_view>;
    static constexpr std::array pairs = {Pair{".query.", ".to_q."}, Pair{".key.", ".to_k."},
                                         Pair{".value.", ".to_v."}, Pair{".proj_attn.", ".to_out.0."}};
    const std::size_t attention = name.find(".attentions.");
    if (attention == std::string::npos) return name;
    for (const auto& [old, now] : pairs)
      if (const std::size_t at = name.find(old, attention); at != std::string::npos)
        return name.substr(0, at) + std::string(now) + name.substr(at + old.size());
    return name;
  };
  return rules;
}

}  // namespace pom::codecs
