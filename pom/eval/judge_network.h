// Private to the room: the network of the judge, as functions of named tensors. N pictures, H x W pixels, F
// features.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/eval/drawings.h"
#include "pom/eval/judge_layers.h"

namespace pom::eval {

inline constexpr std::int64_t judge_features = 64;

// Names and shapes of its tensors for pictures of this size.
JudgeShapes judge_shapes(const Canvas& canvas);

struct JudgeOutput {
  at::Tensor kinds, hues;  // (N, kinds) and (N, hues): scores
  at::Tensor poses;        // (N, 3)
  at::Tensor features;     // (N, F)
};

// x (N, 3, H, W) fp32 in [-1, 1]. Each convolution halves the picture or keeps it; what is left is averaged
// to a grid, which still knows where things are. While learning, norms are those of the batch, and what they
// will be later (norm.mean, norm.variance) is brought up to date.
JudgeOutput judge_forward(const JudgeWeights& weights, const at::Tensor& x, bool learning = false);

}  // namespace pom::eval
