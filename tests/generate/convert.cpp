// Model folders of others' networks: fields that are set, defaults, files, the check. The referee of what
// they compute is python/tests/test_convert.py.
#include "pom/generate/convert.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/generate/model_files.h"
#include "pom/generate/set_field.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;
using models::Origin;

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(SetField, TakesJsonAndBareWords) {
  ModelConfig config;
  const std::set<std::string> given =
      set_json_fields({"network.order=3", "network.learned_variance=true", "diffusion.path=epsilon",
                       "sample.size=[512, 384]", "codec.scale=0.5", "name=1152", "network.time_input=1-t"},
                      config);
  EXPECT_EQ(config.network.order, 3);
  EXPECT_TRUE(config.network.learned_variance);
  EXPECT_EQ(config.diffusion.path, "epsilon");
  EXPECT_EQ(config.sample.size, (std::vector<std::int64_t>{512, 384}));
  EXPECT_EQ(config.codec.scale, 0.5);
  EXPECT_EQ(config.name, "1152");
  EXPECT_EQ(config.network.time_input, "1-t");
  EXPECT_TRUE(given.contains("network.order") && given.contains("name") && !given.contains("network.dim"));
}

TEST(SetField, MistakesAreNamed) {
  const auto told = [](const char* assignment) {
    ModelConfig config;
    return message_of([&] { set_json_fields({assignment}, config); });
  };
  EXPECT_EQ(told("network.order"),
            "--set: expected FIELD=VALUE, such as network.order=3, got \"network.order\"");
  EXPECT_EQ(told("=3"), "--set: expected FIELD=VALUE, such as network.order=3, got \"=3\"");
  EXPECT_EQ(told("network.order=two"), "--set: network.order: expected an integer, got \"two\"");
  EXPECT_EQ(told("network.order=0"), "--set: network.order: expected 1 to 64, got 0");
  EXPECT_EQ(told("network.orde=3"),
            "--set: network.orde: unknown field; did you mean \"order\" or \"order_expand\"?");
  EXPECT_EQ(told("network.mixer=pon"), "--set: network.mixer: unknown value \"pon\"; did you mean \"pom\"?");
  EXPECT_NE(told("network.order.x=3").find("--set: network.order: "), std::string::npos);
  EXPECT_NE(told("network=3").find("--set: network: "), std::string::npos);
  EXPECT_NE(told("network.order=1-").find("--set"), std::string::npos);
}

class ConvertModel : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder);
    at::manual_seed(4);
    network.dim = 16, network.depth = 1, network.channels = 3, network.classes = 4;
    models::Weights weights;
    for (const models::TensorSpec& spec : models::expected_tensors(network))
      weights[spec.name] = at::randn(spec.shape) * 0.2;
    models::write_weights(source, models::export_network(weights, network, Origin::homm), std::nullopt);
  }
  void TearDown() override { fs::remove_all(folder); }

  models::NetworkConfig network;
  fs::path folder =
      fs::temp_directory_path() / ("pom_convert_model_" + std::to_string(::getpid()) + "_" +
                                   testing::UnitTest::GetInstance()->current_test_info()->name());
  fs::path source = folder / "theirs.safetensors", made = folder / "made";
};

TEST_F(ConvertModel, WritesAFolderThatOpens) {
  const ConvertedModel model =
      convert_model(source, {.set = {"diffusion.path=flow", "sample.steps=7", "name=theirs"}});
  write_converted(made, model);
  const ModelFiles files = open_model(made);
  EXPECT_EQ(files.config.name, "theirs");
  EXPECT_EQ(files.config.codec.kind, "pixels");  // of three channels
  EXPECT_EQ(files.config.diffusion.path, "flow");
  EXPECT_EQ(files.config.sample.sampler, "heun");
  EXPECT_EQ(files.config.sample.steps, 7);
  EXPECT_EQ(files.config.sample.cfg_scale, 1.7);
  const ConversionCheck check = check_converted(source, made, model, Origin::homm);
  EXPECT_EQ(check.tensors, std::ssize(models::expected_tensors(network)) + 1);  // freqs
  EXPECT_LT(check.difference, 1e-5);
  std::ofstream(made / "kept.txt") << "mine";
  write_converted(made, model);
  EXPECT_TRUE(fs::exists(made / "kept.txt"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 2);
}

TEST_F(ConvertModel, TheCheckFindsWhatIsNotTheSame) {
  ConvertedModel model = convert_model(source, {});
  write_converted(made, model);
  models::Weights damaged = model.weights;
  damaged["out_proj.bias"] = damaged["out_proj.bias"].clone();
  damaged["out_proj.bias"][1] += 1e-6;
  model.weights = damaged;
  write_converted(made, model);
  EXPECT_EQ(
      message_of([&] { check_converted(source, made, model, Origin::homm); }),
      "check: tensor \"out_proj.bias\": expected the values of the source after going there and back, got "
      "others");
}

TEST_F(ConvertModel, DamagedWeightsGiveNoFiniteAnswer) {
  write_converted(made, convert_model(source, {}));
  models::Weights theirs = weights_for(made, Origin::homm);
  theirs["in_conv.bias"] = at::full({16}, std::numeric_limits<float>::infinity());
  models::write_weights(source, theirs, std::nullopt);
  const ConvertedModel model = convert_model(source, {});
  write_converted(made, model);
  EXPECT_NE(message_of([&] { check_converted(source, made, model, Origin::homm); }).find("expected finite"),
            std::string::npos);
}

}  // namespace
}  // namespace pom::generate
