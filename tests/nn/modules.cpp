// The modules: names and shapes of the parameters, and what they compute.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/nn/polymorpher.h"
#include "pom/nn/pom.h"

namespace {

using namespace pom;

std::vector<std::string> names(const torch::nn::Module& module) {
  std::vector<std::string> result;
  for (const auto& p : module.named_parameters()) result.push_back(p.key());
  return result;
}

TEST(PoM, HasThePapersParameters) {
  const nn::PoM layer(24, 3, 2);
  EXPECT_EQ(names(*layer), (std::vector<std::string>{"ho_proj.weight", "ho_proj.bias", "se_proj.weight",
                                                     "se_proj.bias", "ag_proj.weight", "ag_proj.bias"}));
  EXPECT_EQ(layer->ho_proj->weight.sizes(), at::IntArrayRef({144, 24}));
  EXPECT_EQ(layer->ag_proj->weight.sizes(), at::IntArrayRef({24, 144}));
  EXPECT_EQ(names(*nn::PoM(24, 3, 2, false)).size(), 3u);
}

TEST(PoM, SelfCrossAndBackward) {
  at::manual_seed(1);
  for (const bool bias : {true, false}) {
    nn::PoM layer(16, 2, 2, bias);
    const at::Tensor x = at::randn({2, 9, 16}), context = at::randn({2, 5, 16});
    EXPECT_TRUE(at::equal(layer->forward(x), layer->forward(x, x)));
    const at::Tensor out = layer->forward(x, context);
    EXPECT_EQ(out.sizes(), x.sizes());
    out.sum().backward();
    for (const auto& p : layer->named_parameters()) {
      ASSERT_TRUE(p.value().grad().defined()) << p.key();
      EXPECT_EQ(p.value().grad().sizes(), p.value().sizes());
      EXPECT_GT(p.value().grad().abs().sum().item<float>(), 0) << p.key();
    }
  }
}

TEST(PoM, StepsLikeTheParallelForm) {
  at::manual_seed(2);
  nn::PoM layer(16, 2, 2);
  layer->to(at::kDouble);
  const at::Tensor x = at::randn({2, 12, 16}, at::kDouble);
  const at::NoGradGuard no_grad;
  ops::MixerState state = layer->start(2);
  const at::Tensor whole = layer->forward(x, {}, ops::Mask::block_causal(4));
  for (std::int64_t t = 0; t < 12; t += 4)
    EXPECT_TRUE(
        at::allclose(layer->step(x.slice(1, t, t + 4), state), whole.slice(1, t, t + 4), 1e-10, 1e-12));
}

TEST(PoM, RefusesBadSizes) {
  EXPECT_THROW(nn::PoM(0, 2, 2), Error);
  EXPECT_THROW(nn::PoM(8, 0, 2), Error);
  EXPECT_THROW(nn::PoM(8, 2, 0), Error);
}

TEST(Polymorpher, IsTwoResidualBranches) {
  at::manual_seed(3);
  nn::Polymorpher block(nn::PolymorpherOptions{.dim = 16, .order = 2, .order_expand = 2, .ffw_expand = 3});
  const at::Tensor x = at::randn({2, 7, 16});
  const at::NoGradGuard no_grad;
  const at::Tensor mixed = x + block->pom->forward(block->norm1->forward(x));
  EXPECT_TRUE(at::allclose(block->forward(x), mixed + block->ffw->forward(block->norm2->forward(mixed))));
  for (auto& p : block->pom->ag_proj->parameters()) p.zero_();
  for (auto& p : block->ffw->parameters()) p.zero_();
  EXPECT_TRUE(at::equal(block->forward(x), x));
}

TEST(Polymorpher, StepsThroughASequence) {
  at::manual_seed(4);
  nn::Polymorpher block(nn::PolymorpherOptions{.dim = 16});
  block->to(at::kDouble);
  const at::Tensor x = at::randn({1, 10, 16}, at::kDouble);
  const at::NoGradGuard no_grad;
  ops::MixerState state = block->pom->start(1);
  const at::Tensor whole = block->forward(x, ops::Mask::block_causal(5));
  EXPECT_TRUE(at::allclose(block->step(x.slice(1, 0, 5), state), whole.slice(1, 0, 5), 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(block->step(x.slice(1, 5, 10), state), whole.slice(1, 5, 10), 1e-10, 1e-12));
}

}  // namespace
