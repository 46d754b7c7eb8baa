// A checkpoint of a few tensors whose values follow from its step, for the tests of checkpoints.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "pom/train/checkpoint.h"

namespace pom::train::testing {

inline models::Weights small_weights(double first, at::ScalarType dtype = at::kFloat) {
  models::Weights weights;
  weights["in.weight"] = at::arange(first, first + 6, dtype).reshape({2, 3}).div_(7);
  weights["in.bias"] = at::arange(first, first + 2, dtype);
  weights["out"] = at::zeros({0, 4}, dtype);
  weights["scale"] = at::zeros({}, dtype).add_(first);
  return weights;
}

inline Checkpoint small_checkpoint(std::int64_t step, at::ScalarType dtype = at::kFloat) {
  const auto first = static_cast<double>(step);
  Checkpoint checkpoint;
  checkpoint.state.step = step;
  checkpoint.state.updates = step - 1;
  checkpoint.state.seed = 1234567890123456789;
  checkpoint.state.place = 64 * step;
  checkpoint.state.seconds = 0.1;
  checkpoint.recipe = "[run]\nname = \"é\"\n";
  checkpoint.weights = small_weights(first, dtype);
  checkpoint.ema = small_weights(first + 100, dtype);
  checkpoint.moment1 = small_weights(first + 200, dtype);
  checkpoint.moment2 = small_weights(first + 300, dtype);
  return checkpoint;
}

inline bool same(const models::Weights& a, const models::Weights& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.scalar_type() == y.second.scalar_type() &&
           at::equal(x.second, y.second);
  });
}

inline bool same(const Checkpoint& a, const Checkpoint& b) {
  const State &x = a.state, &y = b.state;
  const bool states = x.step == y.step && x.updates == y.updates && x.seed == y.seed && x.draws == y.draws &&
                      x.place == y.place && x.skipped == y.skipped && x.bad_in_row == y.bad_in_row &&
                      x.rollbacks == y.rollbacks && x.cooldown_from == y.cooldown_from &&
                      x.cooldown_steps == y.cooldown_steps && x.seconds == y.seconds;
  return states && a.recipe == b.recipe && same(a.weights, b.weights) && same(a.ema, b.ema) &&
         same(a.moment1, b.moment1) && same(a.moment2, b.moment2);
}

}  // namespace pom::train::testing
