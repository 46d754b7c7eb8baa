// How the judge of shapes learns. B drawings in a batch.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tensor.h>

#include "pom/data/dataset.h"
#include "pom/eval/judge.h"
#include "pom/eval/judge_learning.h"
#include "pom/eval/judge_network.h"

namespace pom::eval {
namespace {

constexpr double easier = 0.2;  // weight of hues and poses, which else crowd out the shapes

// So that errors of about the spread of a position or a size count as 1.
at::Tensor pose_units() {
  return at::tensor({8.0F, 8.0F, 4.0F});
}

at::Tensor loss_of(const JudgeOutput& out, const Drawings& truth) {
  const at::Tensor hues = at::cross_entropy_loss(out.hues, truth.hues),
                   poses = at::mse_loss(out.poses * pose_units(), truth.poses * pose_units());
  return at::cross_entropy_loss(out.kinds, truth.kinds) + easier * (hues + poses);
}

}  // namespace

Judge Judge::train(const JudgeConfig& config, const OnJudgeStep& on_step) {
  check_judge_config(config);
  JudgeWeights weights =
      initial_weights(judge_shapes(config.canvas), config.seed, {"kinds", "hues", "poses"});
  weights.at("poses.bias").detach()[2] = -1.6;  // log2 of a middling radius
  const auto loss = [&](std::int64_t step) {
    const Drawings batch =
        draw(DrawnFor::learning, config.seed, step * config.batch, config.batch, config.canvas);
    const at::Tensor x = worn(data::to_model_range(batch.pictures), config.seed, step);
    return loss_of(judge_forward(weights, x, /*learning=*/true), batch);
  };
  learn(weights, config, loss, on_step);
  return Judge(config, std::move(weights));
}

}  // namespace pom::eval
