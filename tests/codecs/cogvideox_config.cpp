// Tests of what follows from config.json of an AutoencoderKLCogVideoX.
#include "pom/codecs/cogvideox_config.h"

#include <gtest/gtest.h>
#include <map>
#include <numeric>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

std::int64_t values_of(const CogVideoXConfig& config, const std::string& prefix) {
  std::int64_t all = 0;
  for (const TensorSpec& spec : cogvideox_tensors(config))
    if (spec.name.starts_with(prefix))
      all += std::accumulate(spec.shape.begin(), spec.shape.end(), std::int64_t{1}, std::multiplies<>());
  return all;
}

TEST(CogVideoXConfig, TensorsOfThePublishedModels) {
  const CogVideoXConfig config = read_cogvideox_config("{}", "config.json");
  EXPECT_EQ(cogvideox_tensors(config).size(), 436u);
  EXPECT_EQ(values_of(config, ""), 215'583'907);
  EXPECT_EQ(values_of(config, "encoder."), 92'215'456);
  EXPECT_EQ(values_of(config, "decoder."), 123'368'451);
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const TensorSpec& spec : cogvideox_tensors(config)) shapes[spec.name] = spec.shape;
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shapes.at("encoder.conv_in.conv.weight"), (Shape{128, 3, 3, 3, 3}));
  EXPECT_EQ(shapes.at("encoder.conv_out.conv.bias"), (Shape{32}));
  EXPECT_EQ(shapes.at("encoder.down_blocks.1.resnets.0.conv_shortcut.weight"), (Shape{256, 128, 1, 1, 1}));
  EXPECT_EQ(shapes.at("encoder.down_blocks.2.downsamplers.0.conv.weight"), (Shape{256, 256, 3, 3}));
  EXPECT_EQ(shapes.at("decoder.up_blocks.3.resnets.3.norm2.conv_b.conv.weight"), (Shape{128, 16, 1, 1, 1}));
  EXPECT_EQ(shapes.at("decoder.norm_out.norm_layer.weight"), (Shape{128}));
  EXPECT_FALSE(shapes.contains("decoder.up_blocks.2.resnets.0.conv_shortcut.weight"));
}

TEST(CogVideoXConfig, FramesAndLatents) {
  const CogVideoXConfig config;
  EXPECT_EQ(config.factor(), 8);
  EXPECT_EQ(config.time_factor(), 4);
  struct Row {
    std::int64_t frames, latents, back;
  };
  for (const Row& row : {Row{1, 1, 1},
                         {9, 3, 9},
                         {17, 5, 17},
                         {49, 13, 49},
                         {81, 21, 81},
                         {8, 2, 8},
                         {16, 4, 16},
                         {80, 20, 80},
                         {5, 2, 8},
                         {13, 4, 16},
                         {21, 6, 24},
                         {4, 1, 1},
                         {12, 3, 9},
                         {3, 1, 1},
                         {10, 3, 9},
                         {7, 2, 8}}) {
    EXPECT_EQ(config.latents_of(row.frames), row.latents) << row.frames;
    EXPECT_EQ(config.frames_of(row.latents), row.back) << row.latents;
    EXPECT_EQ(config.returns(row.frames), row.frames == row.back) << row.frames;
  }
  EXPECT_FALSE(config.returns(0));
  EXPECT_EQ(nearest_frames(config, 13), "9 or 16");
  EXPECT_EQ(nearest_frames(config, 4), "1 or 8");
  EXPECT_EQ(nearest_frames(config, 0), "1");
  EXPECT_EQ(video_chunks(49, 8), (std::vector<std::int64_t>{9, 8, 8, 8, 8, 8}));
  EXPECT_EQ(video_chunks(21, 8), (std::vector<std::int64_t>{13, 8}));
  EXPECT_EQ(video_chunks(13, 2), (std::vector<std::int64_t>{3, 2, 2, 2, 2, 2}));
  EXPECT_EQ(video_chunks(1, 2), (std::vector<std::int64_t>{1}));
}

TEST(CogVideoXConfig, OtherCompressions) {
  CogVideoXConfig config;
  config.temporal_compression_ratio = 2;
  EXPECT_EQ(config.time_factor(), 2);
  EXPECT_TRUE(config.returns(4));
  EXPECT_TRUE(config.returns(5));
  EXPECT_FALSE(config.returns(6));
  config.temporal_compression_ratio = 1;
  EXPECT_EQ(config.frames_of(config.latents_of(7)), 7);
  config.temporal_compression_ratio = 256;  // no more levels than there are
  EXPECT_EQ(config.time_factor(), 8);
}

std::string refusal(const std::string& text) {
  try {
    read_cogvideox_config(text, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(CogVideoXConfig, WhatItSays) {
  const CogVideoXConfig c = read_cogvideox_config(
      R"({"_class_name": "AutoencoderKLCogVideoX", "act_fn": "swish", "scaling_factor": 0.7, "force_upcast": 1,
          "temporal_compression_ratio": 4.0, "shift_factor": null, "invert_scale_latents": true,
          "latents_mean": null, "_diffusers_version": "0.42.1"})",
      "config.json");
  EXPECT_EQ(c.scaling_factor, 0.7);
  EXPECT_TRUE(c.invert_scale_latents);
  EXPECT_EQ(c.time_factor(), 4);
}

TEST(CogVideoXConfig, Refusals) {
  EXPECT_EQ(refusal(R"({"use_quant_conv": true})"), "config.json: use_quant_conv: expected false, got true");
  EXPECT_EQ(refusal(R"({"norm_num_groups": 48})"),
            "config.json: norm_num_groups: expected a divisor of all channels, got 48 for 128");
  EXPECT_EQ(refusal(R"({"block_out_channels": [128, 256]})"),
            "config.json: down_block_types: expected 2, as many as block_out_channels, got 4");
  EXPECT_EQ(refusal(R"({"temporal_compression_ratio": 6})"),
            "config.json: temporal_compression_ratio: expected a power of two, got 6");
  EXPECT_EQ(refusal(R"({"temporal_compression_ratio": 0.5})"),
            "config.json: temporal_compression_ratio: expected 1 to 256, got 0.5");
  EXPECT_EQ(refusal(R"({"block_out_channels": []})"),
            "config.json: block_out_channels: expected 1 to 8 levels, got 0");
  EXPECT_EQ(refusal(R"({"layers_per_block": 1000000000})"),
            "config.json: layers_per_block: expected 1 to 64, got 1000000000");
  EXPECT_EQ(refusal(R"({"use_post_quant_conv": true})"),
            "config.json: use_post_quant_conv: expected false, got true");
  EXPECT_EQ(refusal(R"({"pad_mode": "replicate"})"),
            "config.json: pad_mode: unknown value \"replicate\"; there are first");
  EXPECT_EQ(refusal(R"({"act_fn": "relu"})"),
            "config.json: act_fn: unknown value \"relu\"; there are silu, swish");
  EXPECT_NE(refusal(R"({"down_block_types": ["DownEncoderBlock2D"]})"), "none");
  EXPECT_NE(refusal(R"({"_class_name": "AutoencoderKL"})"), "none");
}

}  // namespace
}  // namespace pom::codecs
