// Guidance: the formula, the interval, how often the second half is asked for, and where guided samples land.
#include "pom/diffusion/guidance.h"

#include "tests/diffusion/judge.h"

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace {

using namespace pom;
using namespace pom::diffusion;
using namespace pom::diffusion::testing;

struct Pair {
  Path path = Path::flow();
  Model conditional = perfect_model({{1, 0.2, {-0.8}}}, path), unconditional = perfect_model(line(), path);
  std::vector<double> asked_for_both, asked_for_one;

  PairModel model() {
    return [this](const at::Tensor& x, double t, bool both) {
      (both ? asked_for_both : asked_for_one).push_back(t);
      return both ? at::cat({conditional(x, t), unconditional(x, t)}) : conditional(x, t);
    };
  }
};

TEST(Guidance, PushesAwayFromTheUnconditional) {
  Pair pair;
  const at::Tensor x = start_noise(6, {1}, at::kDouble);
  const at::Tensor c = pair.conditional(x, 0.6), u = pair.unconditional(x, 0.6);
  for (const double omega : {-1.0, -0.5, 0.7, 4.0}) {
    const at::Tensor out = guide(pair.model(), Guidance::omega(omega))(x, 0.6);
    EXPECT_TRUE(at::allclose(out, c + (c - u) * omega, 1e-12, 1e-13)) << omega;
    EXPECT_TRUE(at::allclose(out, u + (c - u) * (1 + omega), 1e-12, 1e-13)) << omega;
  }
}

TEST(Guidance, LeadsSomeChannelsAndLeavesTheOthers) {
  const at::Tensor c = at::randn({2, 4, 3}, at::kDouble), u = at::randn({2, 4, 3}, at::kDouble);
  const PairModel model = [&](const at::Tensor&, double, bool) { return at::cat({c, u}); };
  const at::Tensor x = at::zeros({2, 4, 3}, at::kDouble), led = u + 4 * (c - u);
  const auto answer = [&](std::int64_t channels) {
    return guide(model, {.scale = 4, .channels = channels})(x, 0.5);
  };
  const at::Tensor three = answer(3);
  EXPECT_TRUE(at::allclose(three.narrow(1, 0, 3), led.narrow(1, 0, 3), 1e-12, 1e-13));
  EXPECT_TRUE(at::equal(three.narrow(1, 3, 1), c.narrow(1, 3, 1)));
  for (const std::int64_t all : {0, 4, 9}) EXPECT_TRUE(at::allclose(answer(all), led, 1e-12, 1e-13));
  EXPECT_THROW(answer(-1), Error);
}

TEST(Guidance, NeverAsksForWhatItDoesNotUse) {
  Pair pair;
  const at::Tensor x = start_noise(3, {1}, at::kDouble);
  EXPECT_TRUE(at::equal(guide(pair.model(), {})(x, 0.5), pair.conditional(x, 0.5)));
  EXPECT_TRUE(pair.asked_for_both.empty());
  EXPECT_EQ(pair.asked_for_one.size(), 1u);
}

TEST(Guidance, ActsInItsIntervalOnly) {
  Pair pair;
  const Guidance guidance{.scale = 3, .from = 0.25, .to = 0.75};
  sample(guide(pair.model(), guidance), start_noise(3, {1}, at::kDouble), pair.path, "euler", {.steps = 8});
  EXPECT_EQ(pair.asked_for_both, (std::vector<double>{0.75, 0.625, 0.5, 0.375, 0.25}));
  EXPECT_EQ(pair.asked_for_one, (std::vector<double>{1, 0.875, 0.125}));
}

// The condition is the left component: without guidance samples are the component, with it they leave the
// right one more decidedly, and the unconditional model alone (scale 0) has both.
// Of ten steps the ninth is at 1 - 0.9, which is less than 0.1 by its last bit.
TEST(Guidance, ActsAtTheEndsOfItsInterval) {
  for (const int steps : {5, 10, 20, 50, 1000}) {
    const std::vector<double> times = evaluation_times("euler", {.steps = steps});
    for (int i = 1; i < steps; ++i) {
      const double time = static_cast<double>(steps - i) / steps;
      const double got = times[static_cast<std::size_t>(i)];
      EXPECT_TRUE((Guidance{.scale = 2, .from = time}.acts_at(got))) << i << " of " << steps;
      EXPECT_TRUE((Guidance{.scale = 2, .to = time}.acts_at(got))) << i << " of " << steps;
      EXPECT_FALSE((Guidance{.scale = 2, .from = time + 1e-4}.acts_at(got))) << i << " of " << steps;
    }
  }
}

TEST(Guidance, SteersSamples) {
  Pair pair;
  const auto run = [&](double scale) {
    return statistics_of(sample(guide(pair.model(), {.scale = scale}), start_noise(4000, {1}, at::kDouble),
                                pair.path, "heun", {.steps = 60}));
  };
  const Statistics plain = run(1), pushed = run(3), none = run(0);
  EXPECT_NEAR(plain.mean, -0.8, 0.02);
  EXPECT_NEAR(plain.variance, 0.04, 0.005);
  EXPECT_EQ(plain.share, 0);
  EXPECT_LT(pushed.mean, plain.mean - 0.01);
  EXPECT_NEAR(none.share, 0.3, 0.03);
}

TEST(Guidance, BitsDoNotDependOnTheBatch) {
  Pair pair;
  const Model model = guide(pair.model(), {.scale = 2.5});
  const at::Tensor x = start_noise(7, {5, 3}, at::kFloat), whole = model(x, 0.4);
  for (std::int64_t i = 0; i < 7; ++i)
    EXPECT_TRUE(at::equal(model(x.narrow(0, i, 1).contiguous(), 0.4), whole.narrow(0, i, 1)));
}

TEST(Guidance, AutoOmegaIsThePapersRule) {
  EXPECT_DOUBLE_EQ(auto_omega(256, 256, 256), 4);
  EXPECT_DOUBLE_EQ(auto_omega(512, 128, 256), 4);
  EXPECT_DOUBLE_EQ(auto_omega(512, 512, 256), 8);
  EXPECT_THROW(auto_omega(0, 256, 256), Error);
  EXPECT_THROW(auto_omega(256, 256, 0), Error);
}

TEST(Guidance, RefusesWhatMakesNoSense) {
  Pair pair;
  EXPECT_THROW(guide({}, {}), Error);
  EXPECT_THROW(guide(pair.model(), {.scale = std::nan("")}), Error);
  EXPECT_THROW(guide(pair.model(), {.scale = 2, .from = 0.8, .to = 0.2}), Error);
  EXPECT_THROW(guide(pair.model(), {.scale = 2, .from = -0.1}), Error);
  const PairModel halved = [](const at::Tensor& x, double, bool) { return x; };
  EXPECT_THROW(guide(halved, {.scale = 2})(start_noise(2, {1}, at::kFloat), 0.5), Error);
}

}  // namespace
