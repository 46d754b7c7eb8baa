#include "pom/eval/judge_learning.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"

namespace pom::eval {
namespace {

constexpr double noisiest = 0.05;  // standard deviation, of pictures in [-1, 1]
constexpr double softest = 0.6;    // share of the blurred picture
constexpr double warmup = 40;      // steps

bool is_learnt(const std::string& name) {
  return !name.ends_with("norm.mean") && !name.ends_with("norm.variance");
}

// (B, 1, 1, 1) in (0, 1).
at::Tensor chances(std::int64_t count, const NoiseKey& key) {
  at::Tensor out = at::empty({count, 1, 1, 1}, at::TensorOptions(at::kFloat));
  fill_uniform(out.data_ptr<float>(), count, key);
  return out;
}

}  // namespace

void check_judge_config(const JudgeConfig& config) {
  const auto fits = [](std::int64_t side) { return side >= 8 && side <= 4096; };
  check(fits(config.canvas.width) && fits(config.canvas.height),
        "judge: size: expected sides of 8 to 4096 pixels, got ", config.canvas.width, "x",
        config.canvas.height);
  check(config.steps >= 1 && config.batch >= 1, "judge: steps, batch: expected at least 1, got ",
        config.steps, " and ", config.batch);
}

JudgeWeights initial_weights(const JudgeShapes& shapes, std::uint64_t seed,
                             const std::vector<std::string>& heads) {
  JudgeWeights weights;
  std::uint32_t place = 0;
  for (const auto& [name, shape] : shapes) {
    at::Tensor w = at::zeros(shape, at::TensorOptions(at::kFloat));
    if (name.ends_with("norm.weight") || name.ends_with("norm.variance")) w.fill_(1);
    const bool head = std::ranges::any_of(heads, [&](const std::string& h) { return name.starts_with(h); });
    if (w.dim() > 1 && !head) {
      fill_normal(w.data_ptr<float>(), w.numel(), {seed, noise_for::weights, place});
      w.mul_(std::sqrt(2 / static_cast<double>(w.numel() / w.size(0))));
    }
    ++place;
    weights.emplace(name, w.requires_grad_(is_learnt(name)));
  }
  return weights;
}

at::Tensor worn(const at::Tensor& x, std::uint64_t seed, std::int64_t step) {
  const std::int64_t count = x.size(0), size = x.numel() / count;
  const auto number = static_cast<std::uint32_t>(step);
  at::Tensor noise = at::empty_like(x);
  float* values = noise.data_ptr<float>();
  const NoiseKey key{seed, noise_for::train_noise, number};
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    fill_normal(values + begin * size, (end - begin) * size, key, begin * size);
  });
  const at::Tensor softness =
      (chances(count, {seed, noise_for::train_time, number}) * 2 - 1).clamp_min(0) * softest;
  const at::Tensor amount = chances(count, {seed, noise_for::dropout, number}) * noisiest;
  const at::Tensor blurred = at::avg_pool2d(x, 3, 1, 1, false, /*count_include_pad=*/false);
  return at::lerp(x, blurred, softness) + noise.mul_(amount);
}

void learn(JudgeWeights& weights, const JudgeConfig& config,
           const std::function<at::Tensor(std::int64_t step)>& loss_at, const OnJudgeStep& on_step) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : weights)
    if (is_learnt(name)) parameters.push_back(tensor);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(config.lr).weight_decay(0.01));
  for (std::int64_t step = 0; step < config.steps; ++step) {
    const double left = 1 - static_cast<double>(step) / static_cast<double>(config.steps);
    optimizer.param_groups()[0].options().set_lr(config.lr *
                                                 std::min(left, static_cast<double>(step + 1) / warmup));
    const at::Tensor loss = loss_at(step);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (on_step) on_step(step + 1, config.steps, loss.item<double>());
  }
  for (auto& [name, tensor] : weights) tensor = tensor.detach();
}

}  // namespace pom::eval
