// The network in training: activations computed again, an observer of its layers, autocast, and patches
// against the convolution whose weights they are multiplied with.
#include "pom/models/dipom.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "pom/base/error.h"

namespace pom::models {
namespace {

NetworkConfig small(const std::string& mixer) {
  NetworkConfig config;
  config.dim = 24, config.depth = 3, config.patch = 2, config.channels = 3, config.classes = 5,
  config.heads = 3, config.mixer = mixer;
  return config;
}

struct Step {
  at::Tensor x, t, y;
  Step() {
    at::manual_seed(3);
    x = at::randn({2, 3, 8, 12}), t = at::rand({2}), y = at::randint(0, 6, {2}, at::kLong);
  }
  at::Tensor operator()(DiPoM& net) const { return net->forward(x, t, y); }
};

DiPoM random_network(const std::string& mixer) {
  DiPoM net(small(mixer));
  at::manual_seed(1);
  const at::NoGradGuard guard;
  for (at::Tensor& p : net->parameters()) p.normal_(0, 0.2);
  return net;
}

struct Autocast {
  explicit Autocast(bool on) : on(on) {
    if (!on) return;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!on) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  bool on;
};

// The output, and the gradients of all parameters. Backward inside or outside of autocast.
std::vector<at::Tensor> all_of(DiPoM& net, const Step& step, bool autocast, bool inside) {
  net->zero_grad();
  std::vector<at::Tensor> result;
  {
    const Autocast scope(autocast);
    result.push_back(step(net));
    if (inside) result[0].to(at::kFloat).square().mean().backward();
  }
  if (!inside) result[0].to(at::kFloat).square().mean().backward();
  for (const at::Tensor& p : net->parameters()) result.push_back(p.grad().clone());
  return result;
}

class Checkpointing : public testing::TestWithParam<std::tuple<std::string, bool, bool>> {};

TEST_P(Checkpointing, ChangesNoBit) {
  const auto [mixer, autocast, inside] = GetParam();
  DiPoM net = random_network(mixer);
  const Step step;
  const std::vector<at::Tensor> plain = all_of(net, step, autocast, inside);
  net->set_checkpointing(true);
  for (int pass = 0; pass < 2; ++pass) {
    const std::vector<at::Tensor> again = all_of(net, step, autocast, inside);
    ASSERT_EQ(again.size(), plain.size());
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(at::equal(again[i], plain[i])) << "tensor " << i << ", pass " << pass;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Checkpointing,
                         testing::Combine(testing::Values("pom", "attention"), testing::Bool(),
                                          testing::Bool()));

TEST(CheckpointingTest, FrozenPartsAndNoGraph) {
  DiPoM net = random_network("pom");
  const Step step;
  const at::Tensor expected = step(net);
  net->set_checkpointing(true);
  {
    const at::NoGradGuard guard;
    EXPECT_TRUE(at::equal(step(net), expected));
    EXPECT_FALSE(step(net).requires_grad());
  }
  for (at::Tensor& p : net->parameters()) p.requires_grad_(false);
  at::Tensor one = net->named_parameters()["layers.1.ffw.0.weight"];
  one.requires_grad_(true);
  step(net).square().mean().backward();
  const at::Tensor found = one.grad().clone();
  one.mutable_grad() = at::Tensor();
  net->set_checkpointing(false);
  step(net).square().mean().backward();
  EXPECT_TRUE(at::equal(found, one.grad()));
}

TEST(CheckpointingTest, RefusesSecondOrder) {
  DiPoM net = random_network("pom");
  net->set_checkpointing(true);
  const at::Tensor loss = Step()(net).square().mean();
  try {
    torch::autograd::grad({loss}, net->parameters(), {}, true, /*create_graph=*/true);
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("second order"), std::string::npos) << error.what();
  }
}

TEST(Observer, SeesEveryLayerInOrder) {
  DiPoM net = random_network("pom");
  std::vector<std::string> seen;
  net->set_observer([&](std::string_view layer, const at::Tensor& out) {
    seen.emplace_back(layer);
    EXPECT_EQ(out.size(1), 24);
  });
  const Step step;
  step(net);
  EXPECT_EQ(seen, (std::vector<std::string>{"in_conv", "layers.0", "layers.1", "layers.2", "out_proj"}));
  net->set_observer({});
  step(net);
  EXPECT_EQ(seen.size(), 5u);
}

// The stream is fp32 whatever the products are in, and the result near that of fp32.
TEST(Autocasting, KeepsTheStream) {
  DiPoM net = random_network("pom");
  const Step step;
  const at::Tensor expected = step(net).detach();
  net->set_observer([&](std::string_view layer, const at::Tensor& out) {
    EXPECT_EQ(out.scalar_type(), layer == "out_proj" ? at::kBFloat16 : at::kFloat) << layer;
  });
  const Autocast scope(true);
  const at::Tensor out = step(net).detach().to(at::kFloat);
  EXPECT_LT((out - expected).norm().item<double>(), 2e-2 * expected.norm().item<double>());
}

TEST(Patches, TimesTheWeightsAreTheConvolution) {
  for (const std::int64_t patch : {1, 2, 3}) {
    const at::Tensor x = at::randn({2, 3, 2 * patch, 5 * patch}, at::kDouble),
                     w = at::randn({7, 3, patch, patch}, at::kDouble), b = at::randn({7}, at::kDouble);
    const at::Tensor expected = at::conv2d(x, w, b, patch).flatten(2).transpose(1, 2);
    EXPECT_TRUE(at::allclose(at::linear(patchify(x, patch), w.flatten(1), b), expected, 1e-12, 1e-12));
  }
}

}  // namespace
}  // namespace pom::models
