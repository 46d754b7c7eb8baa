#include "pom/train/schedule.h"

#include <gtest/gtest.h>

namespace pom::train {
namespace {

OptimizerConfig config(std::int64_t warmup, std::int64_t cooldown) {
  OptimizerConfig optimizer;
  optimizer.lr = 2;
  optimizer.warmup = warmup;
  optimizer.cooldown = cooldown;
  return optimizer;
}

TEST(Schedule, RisesStaysAndFalls) {
  const OptimizerConfig o = config(4, 100);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000, 0), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000, 3), 2);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000, 500), 2);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000, 900), 2);                          // 1 − √0
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000, 925), 1);                          // 1 − √(1/4)
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000, 999), 2 * (1 - std::sqrt(0.99)));  // never quite 0
}

TEST(Schedule, WithoutEither) {
  EXPECT_DOUBLE_EQ(learning_rate(config(0, 0), 10, 0), 2);
  EXPECT_DOUBLE_EQ(learning_rate(config(0, 0), 10, 9), 2);
}

TEST(Schedule, ACooldownThatWasAskedForReplacesTheRecipes) {
  const OptimizerConfig o = config(0, 100);
  const Cooldown asked{.from = 300, .steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000, 299, asked), 2);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000, 301, asked), 1);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1000, 926, {.from = 925, .steps = 4}), 0.5) << "from the rate it had";
  EXPECT_EQ(last_step(1000, asked), 304);
  EXPECT_EQ(last_step(1000, {}), 1000);
}

TEST(Schedule, TheAverageBeginsAtOnce) {
  EmaConfig ema;
  ema.decay = 0.99;
  EXPECT_DOUBLE_EQ(ema_decay(ema, 1), 2.0 / 11);
  EXPECT_DOUBLE_EQ(ema_decay(ema, 90), 0.91);
  EXPECT_DOUBLE_EQ(ema_decay(ema, 100000), 0.99);
}

}  // namespace
}  // namespace pom::train
