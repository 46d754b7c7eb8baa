// How the judge learns: endless drawings, a little noise and blur so that it looks at shapes and not at
// pixels, AdamW with a rate that falls to zero. B drawings in a batch.
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/data/dataset.h"
#include "pom/eval/judge.h"
#include "pom/eval/judge_network.h"

namespace pom::eval {
namespace {

constexpr double noisiest = 0.05;  // standard deviation, of pictures in [-1, 1]
constexpr double softest = 0.6;    // share of the blurred picture
constexpr double easier = 0.2;     // weight of hues and poses, which else crowd out the shapes
constexpr double warmup = 40;      // steps

bool is_learnt(const std::string& name) {
  return !name.ends_with("norm.mean") && !name.ends_with("norm.variance");
}

// Values that keep the size of what goes through; norms begin as the identity.
JudgeWeights initial_weights(const JudgeConfig& config) {
  JudgeWeights weights;
  std::uint32_t place = 0;
  for (const auto& [name, shape] : judge_shapes(config.canvas)) {
    at::Tensor w = at::zeros(shape, at::TensorOptions(at::kFloat));
    if (name.ends_with("norm.weight") || name.ends_with("norm.variance")) w.fill_(1);
    const bool head = name.starts_with("kinds") || name.starts_with("hues") || name.starts_with("poses");
    if (w.dim() > 1 && !head) {  // heads begin with zeros: no opinion
      fill_normal(w.data_ptr<float>(), w.numel(), {config.seed, noise_for::weights, place});
      w.mul_(std::sqrt(2 / static_cast<double>(w.numel() / w.size(0))));
    }
    ++place;
    weights.emplace(name, w.requires_grad_(is_learnt(name)));
  }
  weights.at("poses.bias").detach()[2] = -1.6;  // log2 of a middling radius
  return weights;
}

// (B, 1, 1, 1) in (0, 1).
at::Tensor chances(std::int64_t count, const NoiseKey& key) {
  at::Tensor out = at::empty({count, 1, 1, 1}, at::TensorOptions(at::kFloat));
  fill_uniform(out.data_ptr<float>(), count, key);
  return out;
}

// Half of the pictures are blurred, all are noisy, each as much as chance says.
at::Tensor worn(const at::Tensor& x, const JudgeConfig& config, std::uint32_t step) {
  const std::int64_t count = x.size(0), size = x.numel() / count;
  at::Tensor noise = at::empty_like(x);
  float* values = noise.data_ptr<float>();
  const NoiseKey key{config.seed, noise_for::train_noise, step};
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    fill_normal(values + begin * size, (end - begin) * size, key, begin * size);
  });
  const at::Tensor softness =
      (chances(count, {config.seed, noise_for::train_time, step}) * 2 - 1).clamp_min(0) * softest;
  const at::Tensor amount = chances(count, {config.seed, noise_for::dropout, step}) * noisiest;
  const at::Tensor blurred = at::avg_pool2d(x, 3, 1, 1, false, /*count_include_pad=*/false);
  return at::lerp(x, blurred, softness) + noise.mul_(amount);
}

// So that errors of about the spread of a position or a size count as 1.
at::Tensor pose_units() {
  return at::tensor({8.0F, 8.0F, 4.0F});
}

at::Tensor loss_of(const JudgeOutput& out, const Drawings& truth) {
  const at::Tensor hues = at::cross_entropy_loss(out.hues, truth.hues),
                   poses = at::mse_loss(out.poses * pose_units(), truth.poses * pose_units());
  return at::cross_entropy_loss(out.kinds, truth.kinds) + easier * (hues + poses);
}

void check_judge_config(const JudgeConfig& config) {
  const auto fits = [](std::int64_t side) { return side >= 8 && side <= 4096; };
  check(fits(config.canvas.width) && fits(config.canvas.height),
        "judge: size: expected sides of 8 to 4096 pixels, got ", config.canvas.width, "x",
        config.canvas.height);
  check(config.steps >= 1 && config.batch >= 1, "judge: steps, batch: expected at least 1, got ",
        config.steps, " and ", config.batch);
}

}  // namespace

Judge Judge::train(const JudgeConfig& config, const OnJudgeStep& on_step) {
  check_judge_config(config);
  JudgeWeights weights = initial_weights(config);
  std::vector<at::Tensor> parameters;
  for (const auto& [name, tensor] : weights)
    if (is_learnt(name)) parameters.push_back(tensor);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(config.lr).weight_decay(0.01));
  for (std::int64_t step = 0; step < config.steps; ++step) {
    const double left = 1 - static_cast<double>(step) / static_cast<double>(config.steps);
    optimizer.param_groups()[0].options().set_lr(config.lr *
                                                 std::min(left, static_cast<double>(step + 1) / warmup));
    const Drawings batch =
        draw(DrawnFor::learning, config.seed, step * config.batch, config.batch, config.canvas);
    const at::Tensor x = worn(data::to_model_range(batch.pictures), config, static_cast<std::uint32_t>(step));
    const at::Tensor loss = loss_of(judge_forward(weights, x, /*learning=*/true), batch);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (on_step) on_step(step + 1, config.steps, loss.item<double>());
  }
  for (auto& [name, tensor] : weights) tensor = tensor.detach();
  return Judge(config, std::move(weights));
}

}  // namespace pom::eval
