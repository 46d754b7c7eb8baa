// Numbers that are functions of the step: the learning rate and the memory of the average.
#pragma once

#include <cstdint>

#include "pom/train/recipe.h"

namespace pom::train {

// A cooldown that someone asked for at a step, instead of the recipe's at the end; it falls from the rate of
// that step.
struct Cooldown {
  std::int64_t from = -1, steps = 0;
};

// Of step `step`, counted from 0: rises over `warmup` steps as (step + 1)/warmup, stays, and falls over the
// last `cooldown` steps as 1 − √(i/cooldown), i = 0 … cooldown − 1.
double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t step,
                     const Cooldown& asked = {});
// The last step of a run: its own, or that of the cooldown that was asked for.
std::int64_t last_step(std::int64_t steps, const Cooldown& asked);

// min(decay, (1 + n)/(10 + n)) after n updates of the average.
double ema_decay(const EmaConfig& ema, std::int64_t updates);

}  // namespace pom::train
