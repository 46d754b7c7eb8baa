// Inception-v3 against numbers that the published network's code gave for weights anyone can make.
#include "pom/eval/inception.h"

#include "tests/eval/golden_numbers.h"
#include <gtest/gtest.h>

#include "pom/base/error.h"
#include "pom/eval/feature_scores.h"
#include "pom/eval/inception_input.h"

namespace pom::eval {
namespace {

const Inception::Weights& weights() {
  static const Inception::Weights all = drawn_inception_weights();
  return all;
}

const InceptionWanted everything{
    .early = true, .pool768 = true, .spatial = true, .pool3 = true, .logits = true};

void expect_features(const at::Tensor& got, double sum, const std::vector<double>& begin, double tolerance) {
  EXPECT_NEAR(got.sum().item<double>(), sum, tolerance * std::abs(sum));
  for (std::size_t i = 0; i < begin.size(); ++i)
    EXPECT_NEAR(got[0][static_cast<std::int64_t>(i)].item<double>(), begin[i], tolerance * 10);
}

TEST(Inception, HasTheTensorsOfThePublishedOne) {
  EXPECT_EQ(inception_convs().size(), 94u);
  std::int64_t parameters = 0;
  for (const auto& [name, tensor] : weights())
    if (name.find("running") == std::string::npos) parameters += tensor.numel();
  EXPECT_EQ(weights().size(), 472u);
  EXPECT_EQ(parameters, 23'850'960);
  const at::Tensor first = weights().at("Conv2d_1a_3x3.conv.weight").flatten();
  const std::vector<double> begin = {-0.15198442, 0.12142249, -0.30463362};
  for (std::size_t i = 0; i < begin.size(); ++i)
    EXPECT_NEAR(first[static_cast<std::int64_t>(i)].item<double>(), begin[i], 1e-8);
  EXPECT_NEAR(weights().at("fc.bias")[0].item<double>(), -0.04469739, 1e-8);
}

TEST(Inception, GivesTheFeaturesOfThePublishedOne) {
  const Inception network(weights(), at::kDouble, at::kCPU);
  const at::Tensor pictures = golden::bytes("images", {2, 3, 64, 48});
  EXPECT_EQ(pictures.sum().item<std::int64_t>(), 2'350'021);
  const InceptionFeatures f =
      network.forward(inception_input(pictures, InputRule::tensorflow, at::kDouble), everything);
  expect_features(f.pool64, 73.894062, {1.169023, 1.425988, 0.339220}, 1e-6);
  expect_features(f.pool192, 274.007932, {0.222508, 2.530598, 0.238358}, 1e-6);
  expect_features(f.pool768, 912.936078, {2.950972, 1.718522, 0}, 1e-6);
  expect_features(f.spatial, 2595.771912, {0.046912, 0, 1.117483}, 1e-6);
  expect_features(f.pool3, 3374.571323, {0.371615, 0.152407, 0.001257}, 1e-6);
  expect_features(f.logits, -132.968875, {-2.100888, 1.928836, 3.694631}, 1e-5);
  const InceptionFeatures torch =
      network.forward(inception_input(pictures, InputRule::torch, at::kDouble), {});
  expect_features(torch.pool3, 3384.4398, {0.387916, 0.158557, 0.006067}, 1e-6);
}

TEST(Inception, InSinglePrecisionIsNear) {
  const Inception exact(weights(), at::kDouble, at::kCPU), single(weights(), at::kFloat, at::kCPU);
  const at::Tensor pictures = golden::bytes("images", {1, 3, 64, 48});
  const at::Tensor a = exact.forward(inception_input(pictures, InputRule::tensorflow, at::kDouble), {}).pool3;
  const at::Tensor b = single.forward(inception_input(pictures, InputRule::tensorflow, at::kFloat), {}).pool3;
  EXPECT_LT((a - b).abs().max().item<double>(), 1e-5 * a.max().item<double>());
}

TEST(Inception, RefusesAnotherNetwork) {
  Inception::Weights fewer = weights(), more = weights(), other = weights();
  fewer.erase("Mixed_7c.branch_pool.bn.bias");
  EXPECT_THROW(Inception(fewer, at::kFloat, at::kCPU), Error);
  more["AuxLogits.fc.bias"] = at::zeros({1000});
  EXPECT_THROW(Inception(more, at::kFloat, at::kCPU), Error);
  other["fc.weight"] = at::zeros({1000, 2048});
  EXPECT_THROW(Inception(other, at::kFloat, at::kCPU), Error);
}

at::Tensor row(InputRule rule, std::int64_t side) {
  const at::Tensor picture = at::tensor({0, 10, 20, 30}, at::kByte).expand({1, 3, 4, 4}).contiguous();
  return resized(picture, side, rule, at::kDouble)[0][0][0];
}

TEST(InputRules, ResizeAsTheirOwners) {
  const auto expect = [](const at::Tensor& got, const std::vector<double>& expected) {
    EXPECT_LT((got - at::tensor(expected, at::kDouble)).abs().max().item<double>(), 5e-5) << got;
  };
  expect(row(InputRule::tensorflow, 6), {0, 6.6667, 13.3333, 20, 26.6667, 30});
  expect(row(InputRule::tensorflow, 3), {0, 13.3333, 26.6667});
  expect(row(InputRule::torch, 6), {0, 5, 11.6667, 18.3333, 25, 30});
  expect(row(InputRule::torch, 3), {1.6667, 15, 28.3333});
  expect(row(InputRule::clean, 6), {0, 4.1176, 11.6667, 18.3333, 25.8824, 30.6579});
  expect(row(InputRule::clean, 3), {1.8993, 15, 28.1007});
}

}  // namespace
}  // namespace pom::eval
