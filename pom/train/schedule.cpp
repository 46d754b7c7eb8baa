#include "pom/train/schedule.h"

#include <algorithm>
#include <cmath>

namespace pom::train {

namespace {

double fallen(std::int64_t step, std::int64_t from, std::int64_t length) {
  if (step < from || length == 0) return 1;
  return 1 - std::sqrt(static_cast<double>(step - from) / static_cast<double>(length));
}

double planned_rate(const OptimizerConfig& o, std::int64_t steps, std::int64_t step) {
  const double risen = step < o.warmup ? static_cast<double>(step + 1) / static_cast<double>(o.warmup) : 1.0;
  return o.lr * risen * fallen(step, steps - o.cooldown, o.cooldown);
}

}  // namespace

double learning_rate(const OptimizerConfig& optimizer, std::int64_t steps, std::int64_t step,
                     const Cooldown& asked) {
  if (asked.from < 0 || step < asked.from) return planned_rate(optimizer, steps, step);
  return planned_rate(optimizer, steps, asked.from) * fallen(step, asked.from, asked.steps);
}

std::int64_t last_step(std::int64_t steps, const Cooldown& asked) {
  return asked.from >= 0 ? asked.from + asked.steps : steps;
}

double ema_decay(const EmaConfig& ema, std::int64_t updates) {
  const double n = static_cast<double>(updates);
  return std::min(ema.decay, (1 + n) / (10 + n));
}

}  // namespace pom::train
