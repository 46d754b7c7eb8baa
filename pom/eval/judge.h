// The judge: a small convolutional network that says what a picture of a shape shows. It learns from drawings
// alone and never sees a generated picture before it judges it. N pictures of H x W pixels, F features.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "pom/eval/drawings.h"

namespace pom::eval {

// What the judge says of N pictures.
struct Verdicts {
  at::Tensor kinds;     // (N) int64: the most likely one of data::shape_names()
  at::Tensor hues;      // (N) int64: likewise of data::hue_names()
  at::Tensor poses;     // (N, 3) fp32: x, y in sides of the picture, log2 of the radius
  at::Tensor features;  // (N, F) fp32, from which it says all of that
  // (N, kinds) and (N, hues) fp32: how likely each is, as logits.
  at::Tensor kind_scores = {}, hue_scores = {};
};

struct JudgeConfig {
  Canvas canvas;
  std::uint64_t seed = 0;
  std::int64_t steps = 1200;
  std::int64_t batch = 128;
  double lr = 3e-3;

  friend bool operator==(const JudgeConfig&, const JudgeConfig&) = default;
};

// After each step of training; may throw, which ends it.
using OnJudgeStep = std::function<void(std::int64_t step, std::int64_t total, double loss)>;

class Judge {
 public:
  // On the CPU; a function of the config, the build and the number of threads.
  static Judge train(const JudgeConfig& config, const OnJudgeStep& on_step = {});

  // Files of a judge: safetensors with the config beside the weights. Reading refuses what was trained for
  // pictures of another size, or for other shapes or hues.
  static Judge read(const std::filesystem::path& path, const Canvas& canvas);
  void write(const std::filesystem::path& path) const;

  const JudgeConfig& config() const { return config_; }

  // Pictures (N, 3, H, W) uint8 of the judge's size. A verdict does not depend on the other pictures, but for
  // the last bits.
  Verdicts look(const at::Tensor& pictures) const;

 private:
  using Weights = std::map<std::string, at::Tensor>;
  Judge(const JudgeConfig& config, Weights weights) : config_(config), weights_(std::move(weights)) {}

  JudgeConfig config_;
  Weights weights_;  // fp32
};

// The share of drawings it never saw in training that the judge recognises.
double held_out_rate(const Judge& judge, std::int64_t count = 2000);

}  // namespace pom::eval
