// What a step of training computes: examples, the noise mixed into them, and how wrong the network is about
// it. B examples x0, (B, C, H, W) or (B, C, T, H, W).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/loss.h"
#include "pom/diffusion/path.h"
#include "pom/train/recipe.h"
#include "pom/train/training_model.h"

namespace pom::train {

// What is drawn for a batch: functions of (seed, draw, place in the batch) alone, whatever the device and
// however the batch is split.
struct Draw {
  at::Tensor noise;  // like the examples
  at::Tensor times;  // (B) in (0, 1)
};

class Objective {
 public:
  explicit Objective(const Recipe& recipe);

  // For examples `first` … of the batch with this key, shaped like x0 and on its device, in its dtype.
  Draw draw(const DrawKey& key, const at::Tensor& x0, std::int64_t first) const;
  // The same noise with times spread evenly over (0, 1): example i of `total` is at the middle of one of
  // `total` equal parts.
  Draw draw_evenly(const DrawKey& key, const at::Tensor& x0, std::int64_t first, std::int64_t total) const;

  // The loss of each example (B), fp32 or fp64, with gradients.
  at::Tensor losses(TrainingModel& model, const at::Tensor& x0, const Draw& draw,
                    const Condition& told) const;

 private:
  diffusion::Path path_;
  diffusion::Loss loss_;
  bool logit_normal_;
  double time_shift_;
};

}  // namespace pom::train
