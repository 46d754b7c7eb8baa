// The table of variants, the weights of a network and their files, initial values, counts, and Denoiser
// against the module. python/tests/test_network.py has the referee in plain torch.
#include <filesystem>
#include <gtest/gtest.h>
#include <limits>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/counts.h"
#include "pom/models/denoiser.h"
#include "pom/models/dipom.h"

namespace pom::models {
namespace {

NetworkConfig small(bool attention = false) {
  NetworkConfig config;
  config.dim = 24, config.depth = 3, config.patch = 2, config.channels = 3, config.classes = 5,
  config.heads = 3;
  config.mixer = attention ? "attention" : "pom";
  return config;
}

// Also what starts at zero gets values, else much of the network is silent.
Weights random_weights(const NetworkConfig& config, std::int64_t seed = 1) {
  at::manual_seed(seed);
  Weights weights;
  for (const TensorSpec& spec : expected_tensors(config)) weights[spec.name] = at::randn(spec.shape) * 0.2;
  return weights;
}

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << "\n lacks " << part;
}

class Files : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                 ("pom_network_" + std::to_string(::getpid()) + "_" +
                                  testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST(Variants, AreThirtyTwoAndFoundInAnyCase) {
  EXPECT_EQ(variant_names().size(), 32U);
  const NetworkConfig xl = variant("dipom-xl/2");
  EXPECT_EQ(xl.variant, "DiPoM-XL/2");
  EXPECT_EQ(xl.dim, 1152);
  EXPECT_EQ(xl.depth, 28);
  EXPECT_EQ(xl.ffw_expand, 2);
  EXPECT_EQ(variant("DiT-B/4").heads, 12);
  for (const std::string& name : variant_names()) EXPECT_NO_THROW(check_config(variant(name)));
  expect_parts(message_of([] { variant("DiPoM-XXL/2"); }), {"DiPoM-XXL/2", "did you mean", "DiPoM-XL/2"});
}

TEST(Config, ContradictionsAreNamed) {
  NetworkConfig config = variant("DiPoM-S/2");
  config.dim = 512;
  expect_parts(message_of([&] { check_config(config); }), {"dim", "384", "512", "DiPoM-S/2"});
  config = small();
  config.dim = 30;
  expect_parts(message_of([&] { check_config(config); }), {"dim", "multiple of 4", "30"});
  config = small(true);
  config.heads = 5;
  expect_parts(message_of([&] { check_config(config); }), {"heads", "divisor", "24", "5"});
  config = small();
  config.depth = 0;
  expect_parts(message_of([&] { check_config(config); }), {"depth", "1 to", "0"});
}

TEST(Module, HasExactlyTheExpectedTensors) {
  for (const bool attention : {false, true}) {
    const NetworkConfig config = small(attention);
    DiPoM network(config);
    std::map<std::string, std::vector<std::int64_t>> found;
    std::int64_t total = 0;
    for (const auto& item : network->named_parameters()) {
      found[item.key()] = item.value().sizes().vec();
      total += item.value().numel();
    }
    std::size_t expected = 0;
    for (const TensorSpec& spec : expected_tensors(config)) {
      EXPECT_EQ(found[spec.name], spec.shape) << spec.name;
      ++expected;
    }
    EXPECT_EQ(found.size(), expected);
    EXPECT_EQ(count_parameters(config), total);
  }
}

TEST(Module, StartsAsTheIdentityAndPredictsZero) {
  for (const bool attention : {false, true}) {
    DiPoM network(small(attention));
    const at::Tensor c = at::randn({2, 24}), tokens = at::randn({2, 6, 24});
    for (const auto& layer : *network->layers)
      EXPECT_TRUE(at::equal(layer->as<nn::ModulatedBlock>()->forward(tokens, c), tokens));
    const at::Tensor y = at::tensor({0, 5}, at::kLong);
    EXPECT_EQ(network->forward(at::randn({2, 3, 4, 6}), at::rand({2}), y).abs().max().item<double>(), 0);
  }
}

TEST(InitialWeights, DependOnTheSeedAloneAndHaveTheirSpread) {
  const Weights a = initial_weights(small(), 3), b = initial_weights(small(), 3),
                c = initial_weights(small(), 4);
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  EXPECT_FALSE(at::equal(a.at("in_conv.weight"), c.at("in_conv.weight")));
  NetworkConfig wide = small();
  wide.dim = 96;
  const Weights w = initial_weights(wide, 0);
  const auto deviation = [&](const char* name) { return w.at(name).std().item<double>(); };
  const auto xavier = [](double in, double out) { return std::sqrt(2.0 / (in + out)); };
  EXPECT_NEAR(deviation("layers.0.ffw.0.weight"), xavier(96, 288), 0.02 * xavier(96, 288));
  EXPECT_NEAR(deviation("in_conv.weight"), xavier(12, 96), 0.1 * xavier(12, 96));
  EXPECT_NEAR(deviation("time_emb.0.weight"), 0.02, 0.0006);
  EXPECT_EQ(w.at("layers.1.gate_mlp.1.bias").min().item<double>(), -1);
  EXPECT_EQ(initial_weights(small(true), 0).at("layers.1.gate_mlp.1.bias").abs().max().item<double>(), 0);
}

class Denoising : public testing::TestWithParam<bool> {};

// Ready for latents of height x width of these classes, at these times: evaluation 2 i with the half without
// class, 2 i + 1 without it.
void prepare(Denoiser& denoiser, const std::vector<std::int64_t>& classes, std::int64_t height,
             std::int64_t width, const std::vector<double>& times) {
  SamplingPlan plan{.batch = std::ssize(classes), .height = height, .width = width, .evaluations = {}};
  for (const double t : times) plan.evaluations.push_back({t, true}), plan.evaluations.push_back({t, false});
  denoiser.plan(plan);
  denoiser.tell({.classes = classes});
}

TEST_P(Denoising, EqualsTheModule) {
  for (const auto& [height, width] : {std::pair{4L, 4L}, {6L, 10L}, {2L, 32L}, {34L, 34L}}) {
    const NetworkConfig config = small(GetParam());
    const Weights weights = random_weights(config);
    DiPoM network(config);
    network->set_weights(weights);
    network->to(at::kDouble);
    const at::Tensor x = at::randn({3, 3, height, width});
    const std::vector<std::int64_t> classes{4, 0, 5};
    const std::vector<double> times{1.0, 0.75, 0.31};
    const auto denoiser = Denoiser::make(config, weights);
    prepare(*denoiser, classes, height, width, times);
    at::NoGradGuard no_grad;
    for (const std::int64_t i : {1, 0, 2}) {
      const double t = times[static_cast<std::size_t>(i)];
      const at::Tensor both = (*denoiser)(x, 2 * i).clone();
      const at::Tensor time = at::full({3}, t, at::kDouble), wide = x.to(at::kDouble);
      const at::Tensor expected = network->forward(wide, time, at::tensor(classes, at::kLong));
      const at::Tensor without = network->forward(wide, time, at::full({3}, 5, at::kLong));
      const double scale = expected.abs().max().item<double>();
      EXPECT_LT((both.narrow(0, 0, 3) - expected).abs().max().item<double>(), 2e-5 * scale);
      EXPECT_LT((both.narrow(0, 3, 3) - without).abs().max().item<double>(), 2e-5 * scale);
      EXPECT_TRUE(at::equal((*denoiser)(x, 2 * i + 1), both.narrow(0, 0, 3)));
    }
  }
}

TEST_P(Denoising, ARowDependsOnItsPictureAlone) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const NetworkConfig config = small(GetParam());
    const auto denoiser = Denoiser::make(config, random_weights(config), dtype);
    const at::Tensor x = at::randn({5, 3, 12, 20});
    const std::vector<std::int64_t> classes{4, 0, 5, 0, 2};
    prepare(*denoiser, classes, 12, 20, {0.9, 0.5});
    const at::Tensor whole = (*denoiser)(x, 2).clone();
    const int before = at::get_num_threads();
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      for (std::int64_t b = 0; b < 5; ++b) {
        prepare(*denoiser, {classes[static_cast<std::size_t>(b)]}, 12, 20, {0.5});
        const at::Tensor alone = (*denoiser)(x.narrow(0, b, 1), 0);
        EXPECT_TRUE(at::equal(alone[0], whole[b])) << "picture " << b << ", " << threads << " threads";
        EXPECT_TRUE(at::equal(alone[1], whole[5 + b])) << "picture " << b << ", " << threads << " threads";
      }
    }
    at::set_num_threads(before);
  }
}
INSTANTIATE_TEST_SUITE_P(Mixers, Denoising, testing::Bool(),
                         [](const auto& info) { return info.param ? "attention" : "pom"; });

TEST(Denoising, EqualsTheModuleWithTheNarrowPosition) {
  const NetworkConfig odd = small();
  NetworkConfig config = odd;
  config.position = "narrow";
  const Weights weights = random_weights(config);
  const at::Tensor x = at::randn({1, 3, 6, 10}, at::kDouble), t = at::full({1}, 0.31, at::kDouble),
                   y = at::full({1}, 2, at::kLong);
  const at::NoGradGuard no_grad;
  const auto answer = [&](const NetworkConfig& of) {
    DiPoM network(of);
    network->to(at::kDouble);
    network->set_weights(weights);
    return network->forward(x, t, y);
  };
  const auto denoiser = Denoiser::make(config, weights, at::kDouble);
  prepare(*denoiser, {2}, 6, 10, {0.31});
  const at::Tensor expected = answer(config);
  EXPECT_LT(((*denoiser)(x, 1) - expected).abs().max().item<double>(),
            1e-12 * expected.abs().max().item<double>());
  EXPECT_FALSE(at::allclose(answer(odd), expected, 1e-2, 1e-2));
}

// The fields of the official DiT and SiT, each of which changes the answer, with both mixers.
TEST(Denoising, EqualsTheModuleWithTheFieldsOfDit) {
  const at::Tensor x = at::randn({1, 3, 6, 10}, at::kDouble), t = at::full({1}, 0.31, at::kDouble),
                   y = at::full({1}, 2, at::kLong);
  const at::NoGradGuard no_grad;
  for (const bool attention : {false, true}) {
    std::vector<at::Tensor> answers;
    NetworkConfig config = small(attention);
    const auto judge = [&] {
      const Weights weights = random_weights(config);
      DiPoM network(config);
      network->to(at::kDouble);
      network->set_weights(weights);
      answers.push_back(network->forward(x, t, y));
      EXPECT_EQ(answers.back().sizes(), x.sizes());
      const auto denoiser = Denoiser::make(config, weights, at::kDouble);
      prepare(*denoiser, {2}, 6, 10, {0.31});
      EXPECT_LT(((*denoiser)(x, 1) - answers.back()).abs().max().item<double>(),
                1e-12 * answers.back().abs().max().item<double>());
    };
    judge();
    config.position = "dit", judge();
    config.gelu = "tanh", judge();
    config.time_input = "1-t", judge();
    config.time_input = "1000t-1", judge();
    config.time_features = 10, judge();
    config.learned_variance = true, judge();
    for (std::size_t i = 1; i < answers.size(); ++i)
      EXPECT_FALSE(at::allclose(answers[i], answers[i - 1], 1e-5, 1e-5)) << i;
  }
}

// Orders that no kernel of ours covers are composed, which is no reason to let other pictures matter.
TEST(Denoising, ARowDependsOnItsPictureAloneInAnyOrder) {
  NetworkConfig config = small();
  config.dim = 128, config.order = 17, config.order_expand = 1;
  Weights weights = random_weights(config);
  for (auto& [name, tensor] : weights)
    if (tensor.dim() > 1) tensor.div_(std::sqrt(static_cast<double>(tensor.numel() / tensor.size(0))) * 0.2);
  const auto denoiser = Denoiser::make(config, weights);
  const at::Tensor x = at::randn({4, 3, 36, 68});
  prepare(*denoiser, std::vector<std::int64_t>(4, 1), 36, 68, {0.5});
  const at::Tensor whole = (*denoiser)(x, 1).clone();
  EXPECT_TRUE(whole.isfinite().all().item<bool>());
  prepare(*denoiser, {1}, 36, 68, {0.5});
  for (std::int64_t b = 0; b < 4; ++b)
    EXPECT_TRUE(at::equal((*denoiser)(x.narrow(0, b, 1), 1)[0], whole[b])) << "picture " << b;
}

TEST(Denoising, ManyTimesAndClassesGoThroughABoundedTable) {
  NetworkConfig config = small();
  config.classes = 200;
  const Weights weights = random_weights(config);
  const auto many = Denoiser::make(config, weights), one = Denoiser::make(config, weights);
  std::vector<std::int64_t> classes(100);
  for (std::size_t i = 0; i < classes.size(); ++i) classes[i] = static_cast<std::int64_t>(i) * 2;
  std::vector<double> times;
  for (int i = 0; i < 150; ++i) times.push_back(1 - i / 150.0);
  prepare(*many, classes, 4, 4, times);
  prepare(*one, {14}, 4, 4, times);
  const at::Tensor x = at::randn({100, 3, 4, 4});
  for (const std::int64_t i : {1, 299, 141, 143})
    EXPECT_TRUE(at::equal((*many)(x, i)[7], (*one)(x.narrow(0, 7, 1), i)[0]));
}

// The second half of guidance may be told a class of its own: then it is what that class alone would be.
TEST_P(Denoising, LeadsAwayFromAClass) {
  const NetworkConfig config = small(GetParam());
  const auto denoiser = Denoiser::make(config, random_weights(config));
  const at::Tensor x = at::randn({2, 3, 8, 6});
  prepare(*denoiser, {3, 4}, 8, 6, {0.5});
  const at::Tensor as_classes = (*denoiser)(x, 1).clone();
  denoiser->tell({.classes = {0, 1}, .away_classes = {3, 4}});
  EXPECT_TRUE(at::equal((*denoiser)(x, 0).narrow(0, 2, 2), as_classes));
  const std::vector<std::int64_t> none(2, config.classes);
  denoiser->tell({.classes = {0, 1}, .away_classes = none});
  const at::Tensor named = (*denoiser)(x, 0).clone();
  denoiser->tell({.classes = {0, 1}});
  EXPECT_TRUE(at::equal((*denoiser)(x, 0), named));
}

TEST_P(Denoising, RunsOnAGpuWhereThereIsOne) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const NetworkConfig config = small(GetParam());
  const Weights weights = random_weights(config);
  Weights moved;
  for (const auto& [name, tensor] : weights) moved[name] = tensor.cuda();
  const auto here = Denoiser::make(config, weights), there = Denoiser::make(config, moved);
  const at::Tensor x = at::randn({2, 3, 8, 6});
  const std::vector<std::int64_t> classes{1, 4};
  prepare(*here, classes, 8, 6, {0.5});
  prepare(*there, classes, 8, 6, {0.5});
  const at::Tensor expected = (*here)(x, 0), got = (*there)(x.cuda(), 0).cpu();
  EXPECT_LT((got - expected).abs().max().item<double>(), 1e-4 * expected.abs().max().item<double>());
}

TEST_F(Files, RoundTripInEveryStorage) {
  const NetworkConfig config = small();
  const Weights weights = random_weights(config);
  for (const at::ScalarType storage : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    write_weights(folder / "model.safetensors", weights, storage);
    const Weights back = read_weights(folder / "model.safetensors", config);
    for (const auto& [name, tensor] : weights)
      EXPECT_TRUE(at::equal(back.at(name), tensor.to(storage).to(at::kFloat))) << name << ' ' << storage;
  }
}

TEST_F(Files, EveryTensorIsAccountedFor) {
  const NetworkConfig config = small();
  const auto read_with = [&](auto change) {
    Weights weights = random_weights(config);
    change(weights);
    write_weights(folder / "model.safetensors", weights, at::kFloat);
    return message_of([&] { read_weights(folder / "model.safetensors", config); });
  };
  expect_parts(read_with([](Weights& w) { w.erase("layers.1.ffw.0.bias"); }),
               {"model.safetensors", "layers.1.ffw.0.bias", "(72)", "missing"});
  expect_parts(read_with([](Weights& w) { w["layers.9.extra"] = at::zeros({2}); }),
               {"layers.9.extra", "not part"});
  expect_parts(read_with([](Weights& w) {
                 w["out_proj.weight"] = at::zeros({12, 25});
               }),
               {"out_proj.weight", "(12, 24)", "(12, 25)"});
  expect_parts(read_with([](Weights& w) {
                 Weights prefixed;
                 for (const auto& [name, tensor] : w) prefixed["ema.ema_model." + name] = tensor;
                 w = prefixed;
               }),
               {"missing", "begin with \"ema.ema_model.\""});
  expect_parts(read_with([](Weights& w) { w["freqs"] = at::zeros({12}); }), {"no error"});
}

TEST(Weights, ManyForeignNamesAreRefused) {
  Weights foreign;
  for (int i = 0; i < 100000; ++i) foreign[detail::concat("X", i, ".classes_emb.weight")] = at::zeros({0});
  expect_parts(message_of([&] { check_weights(foreign, small(), "many"); }), {"many: ", "missing", "100000"});
}

TEST_F(Files, DamagedOnesAreErrors) {
  const NetworkConfig config = small();
  const auto path = folder / "model.safetensors";
  write_weights(path, random_weights(config), at::kFloat);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_NE(message_of([&] { read_weights(path, config); }), "no error");
  expect_parts(message_of([&] { read_weights(folder / "none.safetensors", config); }), {"none.safetensors"});
}

TEST(Counts, AreThoseOfThePapersNetworks) {
  const NetworkConfig xl = variant("DiPoM-XL/2");
  const std::int64_t d = 1152, n = 256;
  EXPECT_EQ(count_macs(xl, 32, 32), n * (28 * (12 + 4) * d * d + 2 * 16 * d) + (8 + 28 * 6 + 2) * d * d);
  const NetworkConfig dit = variant("DiT-XL/2");
  EXPECT_EQ(count_macs(dit, 32, 32),
            n * (28 * ((4 + 8) * d * d + 2 * n * d) + 2 * 16 * d) + (8 + 28 * 6 + 2) * d * d);
  EXPECT_GT(training_memory(xl, 32, 32, at::kBFloat16, 8),
            sampling_memory(xl, 32, 32, at::kBFloat16, true, 50).weights);
  // The stream and the modulations of both halves, whatever else.
  EXPECT_GE(sampling_memory(xl, 32, 32, at::kFloat, true, 50).per_picture, 2 * 4 * d * (n + 6 * 28 + 2));
  EXPECT_EQ(count_macs(dit, 1 << 20, 1 << 20), std::numeric_limits<std::int64_t>::max());
}

TEST(Module, RefusesWhatDoesNotFit) {
  DiPoM network(small());
  const at::Tensor y = at::zeros({2}, at::kLong), t = at::rand({2});
  expect_parts(message_of([&] { network->forward(at::randn({2, 3, 5, 4}), t, y); }), {"patch (2)", "5 x 4"});
  expect_parts(message_of([&] { network->forward(at::randn({2, 4, 4, 4}), t, y); }), {"(B, 3, H, W)"});
  expect_parts(message_of([&] {
                 network->forward(at::randn({3, 3, 4, 4}), t, y);
               }),
               {"t: expected shape (3)"});
}

}  // namespace
}  // namespace pom::models
