#include "pom/ops/block/stack_step.h"

#include <gtest/gtest.h>
#include <vector>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::ops {
namespace {

constexpr std::int64_t kDim = 12, kFeatures = 48, kHidden = 20, kOrder = 2;

struct Stack {
  explicit Stack(std::int64_t depth, std::int64_t batch)
      : modulation(at::randn({depth, batch, 6 * kDim}, at::kDouble)),
        sums(at::zeros({depth, batch, kFeatures}, at::kDouble)),
        count(at::zeros({batch}, at::kLong)) {
    const auto random = [](at::IntArrayRef shape) { return at::randn(shape, at::kDouble) * 0.3; };
    for (std::int64_t i = 0; i < depth; ++i)
      blocks.push_back({{random({kFeatures, kDim}),
                         random({kFeatures}),
                         random({kFeatures, kDim}),
                         {},
                         random({kDim, kFeatures}),
                         random({kDim})},
                        {random({kHidden, kDim}), random({kHidden})},
                        {random({kDim, kHidden}), {}}});
  }
  // All tokens (B, n, d) at once, with causal mixers.
  at::Tensor whole(at::Tensor x) const {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const SteppedBlock& b = blocks[i];
      const auto m = modulation.select(0, static_cast<std::int64_t>(i)).unsqueeze(1).chunk(6, 2);
      const auto normed = [&](int part) {
        return at::layer_norm(x, {kDim}, {}, {}, 1e-6) * (1 + m[part]) + m[part + 1];
      };
      const at::Tensor y = normed(0);
      x = x + m[2] * mixer_layer(y, y, b.mixer, kOrder, Mask{{}, 1, 0});
      const at::Tensor hidden = at::gelu(at::linear(normed(3), b.up.weight, b.up.bias));
      x = x + m[5] * at::linear(hidden, b.down.weight, b.down.bias);
    }
    return x;
  }
  std::vector<SteppedBlock> blocks;
  at::Tensor modulation, sums, count;
};

TEST(StackStep, TokenByTokenIsTheCausalStack) {
  at::manual_seed(1);
  constexpr std::int64_t batch = 3, tokens = 7;
  Stack stack(4, batch);
  const at::Tensor x = at::randn({batch, tokens, kDim}, at::kDouble), want = stack.whole(x);
  for (std::int64_t t = 0; t < tokens; ++t) {
    at::Tensor token = x.select(1, t).contiguous();
    EXPECT_FALSE(stack_step(token, stack.blocks, stack.modulation, stack.sums, stack.count, kOrder));
    EXPECT_LE((token - want.select(1, t)).abs().max().item<double>(), 1e-12) << "token " << t;
    EXPECT_TRUE(stack.count.equal(at::full({batch}, t + 1, at::kLong)));
  }
}

TEST(StackStep, MistakesChangeNothing) {
  Stack stack(2, 1);
  at::Tensor x = at::randn({1, kDim}, at::kDouble);
  const at::Tensor before = x.clone();
  const auto run = [&] { stack_step(x, stack.blocks, stack.modulation, stack.sums, stack.count, kOrder); };
  stack.blocks[1].down.weight = at::randn({kDim, kHidden + 1}, at::kDouble);
  EXPECT_THROW(run(), Error);
  stack.blocks.clear();
  EXPECT_THROW(run(), Error);
  EXPECT_TRUE(x.equal(before) && stack.count.equal(at::zeros({1}, at::kLong)));
}

}  // namespace
}  // namespace pom::ops
