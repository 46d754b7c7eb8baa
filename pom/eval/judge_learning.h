// Private to the room: how judges learn. Endless drawings, a little noise and blur so that they look at
// shapes and not at pixels, AdamW with a rate that falls to zero. B drawings in a batch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/judge.h"
#include "pom/eval/judge_layers.h"

namespace pom::eval {

void check_judge_config(const JudgeConfig& config);

// Values that keep the size of what goes through; norms begin as the identity, and heads (by the beginnings
// of their names) with zeros: no opinion.
JudgeWeights initial_weights(const JudgeShapes& shapes, std::uint64_t seed,
                             const std::vector<std::string>& heads);

// Pictures (B, 3, H, W): half of them are blurred, all are noisy, each as much as chance says.
at::Tensor worn(const at::Tensor& pictures, std::uint64_t seed, std::int64_t step);

// As many steps as the config says; `loss` is that of a step.
void learn(JudgeWeights& weights, const JudgeConfig& config,
           const std::function<at::Tensor(std::int64_t step)>& loss, const OnJudgeStep& on_step);

}  // namespace pom::eval
