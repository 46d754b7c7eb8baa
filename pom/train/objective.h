// What a step of training computes: examples, the noise mixed into them, and how wrong the network is about
// it. B examples, C channels, H x W.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/loss.h"
#include "pom/diffusion/path.h"
#include "pom/models/dipom.h"
#include "pom/train/recipe.h"

namespace pom::train {

// What is drawn for a batch: functions of (seed, draw, place in the batch) alone, whatever the device and
// however the batch is split.
struct Draw {
  at::Tensor noise;   // (B, C, H, W)
  at::Tensor times;   // (B) in (0, 1)
  at::Tensor labels;  // (B), `classes` where dropped
};

// Which numbers a batch gets. Training counts `draw` up; validation has one of its own that training never
// uses.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint32_t draw = 0;
};
inline constexpr std::uint32_t validation_draw = 0xFFFFFFFF;

class Objective {
 public:
  explicit Objective(const Recipe& recipe);  // whose number of classes is known

  // For examples `first` … of the batch with this key, shaped like x0 and on its device, in its dtype.
  Draw draw(const DrawKey& key, const at::Tensor& x0, const at::Tensor& labels, std::int64_t first) const;
  // The same noise with all labels kept and times spread evenly over (0, 1): example i of `total` is at the
  // middle of one of `total` equal parts.
  Draw draw_evenly(const DrawKey& key, const at::Tensor& x0, const at::Tensor& labels, std::int64_t first,
                   std::int64_t total) const;

  // The loss of each example (B), fp32 or fp64, with gradients.
  at::Tensor losses(models::DiPoM& network, const at::Tensor& x0, const Draw& draw) const;

 private:
  diffusion::Path path_;
  diffusion::Loss loss_;
  double label_drop_;
  bool logit_normal_;
  std::int64_t classes_;
};

}  // namespace pom::train
