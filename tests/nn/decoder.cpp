// Tokens one by one through a stack of blocks, against the blocks on whole sequences.
#include "pom/nn/decoder.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::nn {
namespace {

constexpr std::int64_t kDim = 16, kTokens = 9, kBatch = 3;

std::vector<Polymorpher> stack(at::ScalarType dtype = at::kDouble, at::Device device = at::kCPU,
                               std::int64_t depth = 3) {
  at::manual_seed(4);
  std::vector<Polymorpher> blocks;
  for (std::int64_t i = 0; i < depth; ++i) {
    Polymorpher block(PolymorpherOptions{
        .dim = kDim, .order = 2, .order_expand = 2, .ffw_expand = 3, .bias = i != 1 || depth == 1});
    const at::NoGradGuard no_gradients;
    for (at::Tensor& p : block->parameters()) p.add_(at::randn_like(p) * 0.1);
    block->to(device, dtype);
    blocks.push_back(block);
  }
  return blocks;
}

at::Tensor whole(std::vector<Polymorpher> blocks, const at::Tensor& x) {
  const at::NoGradGuard no_gradients;
  at::Tensor y = x;
  for (Polymorpher& block : blocks) y = block->forward(y, ops::Mask::causal());
  return y;
}
double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
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

TEST(Decoder, StepsAreTheWholeSequence) {
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kDouble, 1e-12}, {at::kFloat, 1e-5}, {at::kBFloat16, 0.2}}) {
    const std::vector<Polymorpher> blocks = stack(dtype);
    const at::Tensor x = at::randn({kBatch, kTokens, kDim}, dtype), expected = whole(blocks, x);
    Decoder decoder(blocks, kBatch);
    EXPECT_EQ(decoder.fused(), std::nullopt);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const at::Tensor token = t % 2 == 0 ? x.select(1, t) : x.narrow(1, t, 1);
      const at::Tensor y = decoder.step(token);
      EXPECT_EQ(y.sizes(), token.sizes());
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_LT(difference(y.reshape({kBatch, kDim}), expected.select(1, t)), tolerance) << t;
    }
    EXPECT_EQ(decoder.fused(), false);
  }
}

TEST(Decoder, PrefillThenStepsAndForks) {
  const std::vector<Polymorpher> blocks = stack();
  const at::Tensor x = at::randn({kBatch, kTokens, kDim}, at::kDouble), expected = whole(blocks, x);
  Decoder decoder(blocks, kBatch), fork(blocks, kBatch);
  EXPECT_LT(difference(decoder.prefill(x.narrow(1, 0, 4)), expected.narrow(1, 0, 4)), 1e-12);
  fork.load(decoder.states());
  for (Decoder* each : {&decoder, &fork}) {
    EXPECT_LT(difference(each->step(x.select(1, 4)), expected.select(1, 4)), 1e-12);
    EXPECT_LT(difference(each->prefill(x.narrow(1, 5, 4)), expected.narrow(1, 5, 4)), 1e-12);
    EXPECT_TRUE(each->states().back().count().eq(kTokens).all().item<bool>());
  }
  decoder.reset();
  EXPECT_LT(difference(decoder.step(x.select(1, 0)), expected.select(1, 0)), 1e-12);
  Decoder moved = std::move(decoder);
  EXPECT_LT(difference(moved.step(x.select(1, 1)), expected.select(1, 1)), 1e-12);
}

// States are copies: what is done with them, or with the decoder, is not seen by the other.
TEST(Decoder, StatesAreCopies) {
  Decoder decoder(stack(), 1);
  const at::Tensor x = at::randn({1, kDim}, at::kDouble);
  decoder.step(x);
  const std::vector<ops::MixerState> states = decoder.states();
  const at::Tensor kept = states[0].sum().clone();
  decoder.step(x);
  EXPECT_TRUE(at::equal(states[0].sum(), kept));
  decoder.load(states);
  const at::Tensor again = decoder.states()[0].sum();
  EXPECT_TRUE(at::equal(again, kept));
}

TEST(Decoder, FollowsWeights) {
  std::vector<Polymorpher> blocks = stack();
  const at::Tensor x = at::randn({kBatch, 2, kDim}, at::kDouble);
  Decoder decoder(blocks, kBatch);
  const at::Tensor before = decoder.step(x.select(1, 0));
  const at::NoGradGuard no_gradients;
  const auto expect_followed = [&](const char* what) {
    decoder.reset();
    const at::Tensor expected = whole(blocks, x);
    EXPECT_LT(difference(decoder.step(x.select(1, 0)), expected.select(1, 0)), 1e-12) << what;
    EXPECT_GT(difference(expected.select(1, 0), before), 1e-4) << what;
  };
  for (Polymorpher& block : blocks)
    for (at::Tensor& p : block->parameters()) p.mul_(1.3);
  expect_followed("written in place");
  blocks[1]->norm2->bias = torch::autograd::make_variable(at::randn({kDim}, at::kDouble));
  blocks[0]->pom->ho_proj->weight.set_data(at::randn_like(blocks[0]->pom->ho_proj->weight) * 0.3);
  expect_followed("others in their place");
  blocks[2]->ffw->ptr<torch::nn::LinearImpl>(0)->bias.data().add_(1);  // nobody counts this
  decoder.refresh();
  expect_followed("after refresh");
}

TEST(Decoder, Mistakes) {
  const auto make = [](std::vector<Polymorpher> blocks, std::int64_t batch) {
    return message_of([&] { Decoder(std::move(blocks), batch); });
  };
  EXPECT_EQ(make({}, 1), "Decoder: blocks: expected at least one, got none");
  EXPECT_NE(make(stack(), 0).find("batch: expected at least 1, got 0"), std::string::npos);
  std::vector<Polymorpher> mixed = stack();
  mixed[1]->to(at::kFloat);
  EXPECT_NE(make(mixed, 1).find("one kind, like the first with Double"), std::string::npos);
  mixed = stack();
  mixed[2] = Polymorpher(PolymorpherOptions{.dim = kDim, .order = 4, .order_expand = 1, .ffw_expand = 3});
  mixed[2]->to(at::kDouble);
  EXPECT_NE(make(mixed, 1).find("one order, 2, got 4 in block 2"), std::string::npos);
  Decoder decoder(stack(), 2);
  const auto step = [&](const at::Tensor& x) { return message_of([&] { decoder.step(x); }); };
  EXPECT_NE(step(at::randn({3, kDim})).find("x: expected (2, 16) or (2, 1, 16), got (3, 16)"),
            std::string::npos);
  EXPECT_NE(step(at::ones({2, kDim}, at::kLong)).find("floating-point"), std::string::npos);
  EXPECT_NE(message_of([&] { decoder.prefill(at::randn({2, kDim})); }).find("(2, n, 16)"), std::string::npos);
  EXPECT_NE(message_of([&] { decoder.load({}); }).find("one of each block, got 0"), std::string::npos);
  std::vector<ops::MixerState> states = decoder.states();
  states[1].set(states[1].sum(), states[1].count() + 1);
  EXPECT_NE(message_of([&] { decoder.load(states); }).find("same number of tokens"), std::string::npos);
  EXPECT_NE(message_of([&] { decoder.load(Decoder(stack(), 3).states()); }).find("got 3 of 64"),
            std::string::npos);
}

// One kernel or not, steps are those of a CPU, as a graph and again after weights have changed.
TEST(Decoder, OnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    std::vector<Polymorpher> blocks = stack(dtype, at::kCUDA), here = stack(at::kDouble);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const at::NoGradGuard no_gradients;
      const auto from = blocks[i]->parameters();
      auto to = here[i]->parameters();
      for (std::size_t p = 0; p < from.size(); ++p) to[p].copy_(from[p]);
    }
    const at::Tensor x = at::randn({kBatch, kTokens, kDim}, at::TensorOptions(dtype).device(at::kCUDA));
    Decoder decoder(blocks, kBatch), exact(here, kBatch);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (t == 5) {
        const at::NoGradGuard no_gradients;
        for (const auto& stack_now : {blocks, here})
          for (const Polymorpher& block : stack_now) {
            block->norm1->weight.mul_(2);
            if (block->pom->se_proj->bias.defined()) block->pom->se_proj->bias.add_(0.5);
          }
      }
      const at::Tensor want = exact.step(x.select(1, t).cpu().to(at::kDouble));
      const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-2 : 0.15;
      EXPECT_LT(difference(decoder.step(x.select(1, t)).cpu(), want), tolerance) << dtype << ", token " << t;
    }
  }
}

}  // namespace
}  // namespace pom::nn
