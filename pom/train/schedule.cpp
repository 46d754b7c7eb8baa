#include "pom/train/schedule.h"

#include <algorithm>
#include <cmath>

namespace pom::train {

double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t step,
                     const Cooldown& asked) {
  const std::int64_t length = asked.from >= 0 ? asked.steps : optimizer.cooldown;
  const std::int64_t from = asked.from >= 0 ? asked.from : steps - length;
  const double risen =
      step < optimizer.warmup ? static_cast<double>(step + 1) / static_cast<double>(optimizer.warmup) : 1.0;
  const double rate = optimizer.lr * risen;
  if (step < from || length == 0) return rate;
  return rate * (1 - std::sqrt(static_cast<double>(step - from) / static_cast<double>(length)));
}

std::int64_t last_step(std::int64_t steps, const Cooldown& asked) {
  return asked.from >= 0 ? asked.from + asked.steps : steps;
}

double ema_decay(const EmaConfig& ema, std::int64_t updates) {
  const double n = static_cast<double>(updates);
  return std::min(ema.decay, (1 + n) / (10 + n));
}

}  // namespace pom::train
