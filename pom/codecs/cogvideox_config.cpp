#include "pom/codecs/cogvideox_config.h"

#include <algorithm>
#include <cmath>

#include "pom/base/error.h"
#include "pom/io/json_fields.h"

namespace pom::codecs {
namespace {

constexpr std::size_t most_video_levels = 8;

void check_video_config(const CogVideoXConfig& c, const std::string& where) {
  const auto& channels = c.block_out_channels;
  check(!channels.empty() && channels.size() <= most_video_levels, where,
        "block_out_channels: expected 1 to ", most_video_levels, " levels, got ", channels.size());
  for (const auto& [name, types] :
       {std::pair{"down_block_types", &c.down_block_types}, {"up_block_types", &c.up_block_types}})
    check(types->size() == channels.size(), where, name, ": expected ", channels.size(),
          ", as many as block_out_channels, got ", types->size());
  for (const std::int64_t each : channels)
    check(each % c.norm_num_groups == 0, where, "norm_num_groups: expected a divisor of all channels, got ",
          c.norm_num_groups, " for ", each);
  const auto time = static_cast<std::int64_t>(c.temporal_compression_ratio);
  check(static_cast<double>(time) == c.temporal_compression_ratio && (time & (time - 1)) == 0, where,
        "temporal_compression_ratio: expected a power of two, got ", c.temporal_compression_ratio);
  // Sized by the channels of pictures, so that they cannot take latents.
  for (const auto& [name, used] :
       {std::pair{"use_quant_conv", c.use_quant_conv}, {"use_post_quant_conv", c.use_post_quant_conv}})
    check(!used, where, name, ": expected false, got true");
}

// Lists the tensors of a network part by part.
class VideoTensors {
 public:
  explicit VideoTensors(const CogVideoXConfig& config) : c_(config) {}

  std::vector<TensorSpec> take() {
    encoder();
    decoder();
    return std::move(specs_);
  }

 private:
  void pair(const std::string& name, std::vector<std::int64_t> weight) {
    const std::int64_t out = weight.front();
    specs_.push_back({name + ".weight", std::move(weight)});
    specs_.push_back({name + ".bias", {out}});
  }
  void causal(const std::string& name, std::int64_t in, std::int64_t out) {
    pair(name + ".conv", {out, in, 3, 3, 3});
  }
  void norm(const std::string& name, std::int64_t channels, bool spatial) {
    if (!spatial) return pair(name, {channels});
    pair(name + ".norm_layer", {channels});
    pair(name + ".conv_y.conv", {channels, c_.latent_channels, 1, 1, 1});
    pair(name + ".conv_b.conv", {channels, c_.latent_channels, 1, 1, 1});
  }
  void resnet(const std::string& name, std::int64_t in, std::int64_t out, bool spatial) {
    norm(name + ".norm1", in, spatial);
    causal(name + ".conv1", in, out);
    norm(name + ".norm2", out, spatial);
    causal(name + ".conv2", out, out);
    if (in != out) pair(name + ".conv_shortcut", {out, in, 1, 1, 1});
  }
  // The resnets of a level and what changes the size after it.
  std::int64_t level(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t resnets,
                     const char* sampler, bool spatial) {
    for (std::int64_t j = 0; j < resnets; ++j)
      resnet(name + ".resnets." + std::to_string(j), j == 0 ? in : out, out, spatial);
    if (sampler != nullptr) pair(name + sampler, {out, out, 3, 3});
    return out;
  }
  void middle(const std::string& side, bool spatial) {
    const std::int64_t widest = c_.block_out_channels.back();
    for (const char* j : {"0", "1"}) resnet(side + ".mid_block.resnets." + j, widest, widest, spatial);
  }
  void encoder() {
    std::int64_t in = c_.block_out_channels.front();
    causal("encoder.conv_in", c_.in_channels, in);
    for (std::int64_t i = 0; i < c_.levels(); ++i)
      in = level("encoder.down_blocks." + std::to_string(i), in, c_.channels_at(i), c_.layers_per_block,
                 i + 1 < c_.levels() ? ".downsamplers.0.conv" : nullptr, false);
    middle("encoder", false);
    norm("encoder.norm_out", in, false);
    causal("encoder.conv_out", in, 2 * c_.latent_channels);
  }
  void decoder() {
    std::int64_t in = c_.block_out_channels.back();
    causal("decoder.conv_in", c_.latent_channels, in);
    middle("decoder", true);
    for (std::int64_t i = 0; i < c_.levels(); ++i)
      in = level("decoder.up_blocks." + std::to_string(i), in, c_.channels_at(c_.levels() - 1 - i),
                 c_.layers_per_block + 1, i + 1 < c_.levels() ? ".upsamplers.0.conv" : nullptr, true);
    norm("decoder.norm_out", in, true);
    causal("decoder.conv_out", in, c_.out_channels);
  }

  const CogVideoXConfig& c_;
  std::vector<TensorSpec> specs_;
};

}  // namespace

std::int64_t CogVideoXConfig::time_levels() const {
  std::int64_t wanted = 0;
  while ((std::int64_t{2} << wanted) <= static_cast<std::int64_t>(temporal_compression_ratio)) ++wanted;
  return std::min(wanted, levels() - 1);
}

// The first frame of an odd number stays alone.
std::int64_t CogVideoXConfig::latents_of(std::int64_t frames) const {
  std::int64_t latents = 0;
  for (std::int64_t chunk : video_chunks(frames, frames_at_once)) {
    for (std::int64_t i = 0; i < time_levels(); ++i) chunk = (chunk + 1) / 2;
    latents += chunk;
  }
  return latents;
}

std::int64_t CogVideoXConfig::frames_of(std::int64_t latents) const {
  std::int64_t frames = 0;
  for (std::int64_t chunk : video_chunks(latents, latents_at_once)) {
    for (std::int64_t i = 0; i < time_levels(); ++i) chunk = 2 * chunk - chunk % 2;
    frames += chunk;
  }
  return frames;
}

bool CogVideoXConfig::returns(std::int64_t frames) const {
  return frames >= 1 && frames_of(latents_of(frames)) == frames;
}

CogVideoXConfig read_cogvideox_config(std::string_view text, std::string_view source) {
  CogVideoXConfig config;
  io::read_json(text, config, source, io::JsonOrigin::foreign);
  check_video_config(config, std::string(source) + ": ");
  return config;
}

std::vector<TensorSpec> cogvideox_tensors(const CogVideoXConfig& config) {
  return VideoTensors(config).take();
}

WeightRules cogvideox_rules() {
  return {.other = [](const std::string& name) { return name.starts_with("loss."); }};
}

std::string nearest_frames(const CogVideoXConfig& config, std::int64_t frames) {
  std::int64_t below = std::max<std::int64_t>(frames, 0), above = std::max<std::int64_t>(frames, 1);
  while (below > 0 && !config.returns(below)) --below;
  while (!config.returns(above)) ++above;
  return below > 0 && below != above ? pom::detail::concat(below, " or ", above) : std::to_string(above);
}

std::vector<std::int64_t> video_chunks(std::int64_t items, std::int64_t at_once) {
  std::vector<std::int64_t> chunks(static_cast<std::size_t>(std::max<std::int64_t>(1, items / at_once)),
                                   at_once);
  chunks.front() += items - at_once * std::ssize(chunks);
  return chunks;
}

}  // namespace pom::codecs
