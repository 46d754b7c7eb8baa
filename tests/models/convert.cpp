// Networks of others, there and back: which copy of a checkpoint, every tensor accounted for, the order of
// rows. python/tests/test_convert.py compares what they compute with plain modules.
#include "pom/models/convert.h"

#include <filesystem>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::models {
namespace {

namespace fs = std::filesystem;

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class Convert : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  // Writes a network of theirs, with random values, behind a prefix.
  static Weights behind(const std::string& prefix, const Weights& weights) {
    Weights all;
    for (const auto& [name, values] : weights) all[prefix + name] = values;
    return all;
  }
  Imported read(const Weights& theirs, Origin origin, const KnownFields& known = {},
                WeightCopy copy = WeightCopy::best) const {
    write_weights(file, theirs, std::nullopt);
    return import_network(io::safetensors::Reader(file), origin, known, copy);
  }
  std::string refusal(const Weights& theirs, Origin origin, const KnownFields& known = {}) const {
    const std::string message = message_of([&] { read(theirs, origin, known); });
    const std::string where = file.string() + ": ";
    EXPECT_TRUE(message.starts_with(where)) << message;
    return message.substr(std::min(where.size(), message.size()));
  }

  fs::path folder =
      fs::temp_directory_path() / ("pom_convert_" + std::to_string(::getpid()) + "_" +
                                   testing::UnitTest::GetInstance()->current_test_info()->name());
  fs::path file = folder / "theirs.safetensors";
};

NetworkConfig network_of(Origin origin) {
  NetworkConfig c;
  c.dim = 24, c.depth = 2, c.patch = 2, c.channels = 3, c.classes = 5;
  if (origin == Origin::homm_upscale || origin == Origin::homm_text2video) c.position = "narrow";
  if (origin == Origin::homm_text2video) {
    c.kind = "vdipom", c.text_width = 7, c.time_code = "relative", c.no_text = "mask";
    c.classes = 1000;  // which clips do not have
  }
  if (origin == Origin::dit || origin == Origin::sit) {
    c.mixer = "attention", c.heads = 3, c.ffw_expand = 4, c.position = "dit", c.time_features = 10;
    c.gelu = "tanh", c.time_input = origin == Origin::dit ? "1000t-1" : "1-t";
    c.learned_variance = origin == Origin::dit;
  }
  return c;
}

Weights random_weights(const NetworkConfig& config) {
  at::manual_seed(3);
  Weights weights;
  for (const TensorSpec& spec : expected_tensors(config)) weights[spec.name] = at::randn(spec.shape);
  return weights;
}

KnownFields three_heads() {
  KnownFields known{.network = {}, .given = {"heads"}};
  known.network.heads = 3;
  return known;
}

std::vector<std::string> fields_of(NetworkConfig config) {
  std::vector<std::string> said;
  config.fields(
      [&](const Field& field, const auto& value) { said.push_back(detail::concat(field.name, " ", value)); });
  return said;
}

TEST_F(Convert, ThereAndBackIsTheSameForEveryOrigin) {
  for (const std::string& name : origin_names()) {
    const Origin origin = origin_named(name);
    EXPECT_EQ(name_of(origin), name);
    const NetworkConfig config = network_of(origin);
    const Weights ours = random_weights(config), theirs = export_network(ours, config, origin, 4);
    Imported back = read(theirs, origin, config.attention() ? three_heads() : KnownFields());
    EXPECT_EQ(fields_of(back.config), fields_of(config)) << name;
    EXPECT_EQ(back.grid, config.attention() ? 4 : 0);
    back.weights.erase("freqs");
    ASSERT_EQ(back.weights.size(), ours.size()) << name;
    for (const auto& [key, values] : ours) EXPECT_TRUE(at::equal(values, back.weights.at(key))) << key;
    const Weights again = export_network(back.weights, back.config, origin, 4);
    ASSERT_EQ(again.size(), theirs.size());
    for (const auto& [key, values] : theirs) EXPECT_TRUE(at::equal(values, again.at(key))) << key;
  }
}

TEST_F(Convert, TheirNamesAndTheOrderOfTheirRows) {
  const NetworkConfig config = network_of(Origin::dit);
  const Weights ours = random_weights(config), theirs = export_network(ours, config, Origin::dit, 2);
  const std::vector<at::Tensor> rows = theirs.at("blocks.1.adaLN_modulation.1.bias").chunk(6);
  const std::vector<at::Tensor> cond = ours.at("layers.1.cond_mlp.1.bias").chunk(4),
                                gate = ours.at("layers.1.gate_mlp.1.bias").chunk(2);
  const std::vector<at::Tensor> expected = {cond[1], cond[0], gate[0], cond[3], cond[2], gate[1]};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(at::equal(rows[i], expected[i])) << i;
  EXPECT_EQ(theirs.at("pos_embed").sizes(), at::IntArrayRef({1, 4, 24}));
  EXPECT_TRUE(at::equal(theirs.at("final_layer.linear.weight"), ours.at("out_proj.weight")));

  const NetworkConfig turned = network_of(Origin::sit);
  const Weights of_sit = random_weights(turned);
  EXPECT_TRUE(at::equal(export_network(of_sit, turned, Origin::sit, 2).at("final_layer.linear.weight"),
                        -of_sit.at("out_proj.weight")));

  const NetworkConfig clips = network_of(Origin::homm_text2video);
  const Weights of_clips = random_weights(clips);
  const Weights named = export_network(of_clips, clips, Origin::homm_text2video);
  // Value (channel 2, frame 1, row 0, column 1) of a patch, the channel fastest there.
  EXPECT_TRUE(at::equal(named.at("in_proj.weight").select(1, ((1 * 2 + 0) * 2 + 1) * 3 + 2),
                        of_clips.at("in_conv.weight").select(4, 1).select(3, 0).select(2, 1).select(1, 2)));
  EXPECT_TRUE(named.contains("layers.1.c_hom.ag_proj.bias") && named.contains("text_emb.bias"));
  EXPECT_EQ(named.at("freqs").sizes(), at::IntArrayRef({12}));
}

TEST_F(Convert, TakesTheCopyThatWasAskedFor) {
  const NetworkConfig config = network_of(Origin::homm);
  const Weights model = export_network(random_weights(config), config, Origin::homm);
  Weights ema;
  for (const auto& [name, values] : model) ema[name] = name == "freqs" ? values : values + 1;
  Weights all = behind("model.", model);
  all.merge(behind("ema.ema_model._orig_mod.", ema));
  const auto taken = [&](float begun, WeightCopy copy) {
    all["ema.initted"] = at::full({1}, begun), all["ema.step"] = at::full({1}, 3.0F);
    const Imported done = read(all, Origin::homm, {}, copy);
    const at::Tensor& expected = (done.copy == "ema" ? ema : model).at("out_proj.bias");
    EXPECT_TRUE(at::equal(done.weights.at("out_proj.bias"), expected));
    EXPECT_EQ(done.prefix, done.copy == "ema" ? "ema.ema_model._orig_mod." : "model.");
    return done.copy;
  };
  EXPECT_EQ(taken(1, WeightCopy::best), "ema");
  EXPECT_EQ(taken(0, WeightCopy::best), "model");
  EXPECT_EQ(taken(0, WeightCopy::ema), "ema");
  EXPECT_EQ(taken(1, WeightCopy::model), "model");
  EXPECT_EQ(read(behind("module.", model), Origin::homm).prefix, "module.");
  EXPECT_EQ(read(model, Origin::homm).copy, "");
  all["loss.weight"] = at::zeros({2});
  EXPECT_EQ(refusal(all, Origin::homm), "tensor \"loss.weight\" is not part of the network");
}

TEST_F(Convert, KeepsEachDtype) {
  const NetworkConfig config = network_of(Origin::homm);
  Weights theirs = export_network(random_weights(config), config, Origin::homm);
  theirs["out_proj.weight"] = theirs["out_proj.weight"].to(at::kBFloat16);
  theirs["freqs"] = theirs["freqs"].to(at::kHalf);
  const Imported done = read(theirs, Origin::homm);
  EXPECT_EQ(done.weights.at("out_proj.weight").scalar_type(), at::kBFloat16);
  EXPECT_EQ(done.weights.at("out_proj.bias").scalar_type(), at::kFloat);
  EXPECT_TRUE(
      at::equal(export_network(done.weights, done.config, Origin::homm).at("freqs"), theirs["freqs"]));
}

TEST_F(Convert, EveryTensorIsAccountedFor) {
  const NetworkConfig config = network_of(Origin::homm);
  const Weights good = export_network(random_weights(config), config, Origin::homm);
  Weights theirs = good;
  theirs.erase("layers.1.hom.ag_proj.weight");
  theirs["layers.1.pom.ag_proj.weight"] = at::zeros({2});
  EXPECT_EQ(refusal(behind("model.", theirs), Origin::homm),
            "tensor \"model.layers.1.hom.ag_proj.weight\" of shape (24, 96) is missing; the file has 1 that "
            "the network does not, \"model.layers.1.pom.ag_proj.weight\" first");
  theirs = good;
  theirs["layers.0.ffw.2.bias"] = at::zeros({25});
  EXPECT_EQ(refusal(theirs, Origin::homm), "tensor \"layers.0.ffw.2.bias\": expected shape (24), got (25)");
  theirs = good;
  theirs["classes_emb.weight"] = at::zeros({24});
  EXPECT_EQ(refusal(theirs, Origin::homm), "tensor \"classes_emb.weight\": expected 2 sides, got shape (24)");
  EXPECT_EQ(refusal({{"a", at::zeros({1})}}, Origin::homm), "tensor \"classes_emb.weight\" is missing");
  EXPECT_EQ(refusal(good, Origin::dit),
            "tensor \"classes_emb.weight\": this is a network of the authors of PoM: --from homm, "
            "homm-upscale or homm-text2video");
  EXPECT_EQ(refusal(good, Origin::homm_text2video),
            "tensor \"classes_emb.weight\": this is a network with classes: --from homm, or --from "
            "homm-upscale");
}

TEST_F(Convert, OtherTimeStepsAreNamed) {
  const NetworkConfig config = network_of(Origin::homm);
  Weights theirs = export_network(random_weights(config), config, Origin::homm);
  theirs["freqs"] = (at::arange(12, at::kFloat) * (-2 * std::log(250.0) / 24)).exp();
  EXPECT_EQ(refusal(theirs, Origin::homm),
            "tensor \"freqs\": expected exp(-2 ln(1000) i / 24), of 1000 time steps, got those of about 250: "
            "libpom has no network for them");
  theirs["freqs"] = at::full({12}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_NE(refusal(theirs, Origin::homm).find("expected exp(-2 ln(1000) i / 24)"), std::string::npos);
  theirs["freqs"] = at::zeros({11});
  EXPECT_EQ(refusal(theirs, Origin::homm), "tensor \"freqs\": expected shape (12), got (11)");
}

TEST_F(Convert, WhatTheOtherCodeCannotSayIsNamed) {
  NetworkConfig config = network_of(Origin::homm);
  config.gelu = "tanh";
  EXPECT_EQ(message_of([&] { export_network(random_weights(config), config, Origin::homm); }),
            "convert: network.gelu: expected erf for homm, got tanh");
  config = network_of(Origin::homm_text2video);
  config.window = 3;
  EXPECT_EQ(message_of([&] { export_network(random_weights(config), config, Origin::homm_text2video); }),
            "convert: network.window: expected 0 for homm-text2video, got 3");
  EXPECT_EQ(
      message_of([] { origin_named("hom"); }),
      "convert: unknown network \"hom\"; did you mean \"homm\" or \"homm-upscale\" or \"homm-text2video\"?");
}

}  // namespace
}  // namespace pom::models
