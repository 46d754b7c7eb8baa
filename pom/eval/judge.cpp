#include "pom/eval/judge.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/data/dataset.h"
#include "pom/eval/judge_network.h"
#include "pom/eval/judge_weights_file.h"

namespace pom::eval {
namespace {

constexpr std::int64_t at_a_time = 256;
constexpr const char* file_format = "pom judge of shapes, 1";

}  // namespace

Verdicts Judge::look(const at::Tensor& pictures) const {
  const bool fitting = pictures.dim() == 4 && pictures.scalar_type() == at::kByte && pictures.size(0) > 0 &&
                       pictures.size(1) == 3 && pictures.size(2) == config_.canvas.height &&
                       pictures.size(3) == config_.canvas.width;
  check(fitting, "judge: pictures: expected uint8 (N, 3, ", config_.canvas.height, ", ", config_.canvas.width,
        "), got ", pictures.scalar_type(), " ", pictures.sizes());
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> kinds, hues, poses, features, kind_scores, hue_scores;
  for (const at::Tensor& part : pictures.split(at_a_time)) {
    const JudgeOutput out = judge_forward(weights_, data::to_model_range(part));
    kinds.push_back(out.kinds.argmax(1));
    hues.push_back(out.hues.argmax(1));
    poses.push_back(out.poses);
    features.push_back(out.features);
    kind_scores.push_back(out.kinds);
    hue_scores.push_back(out.hues);
  }
  return {at::cat(kinds),    at::cat(hues),        at::cat(poses),
          at::cat(features), at::cat(kind_scores), at::cat(hue_scores)};
}

Judge Judge::read(const std::filesystem::path& path, const Canvas& canvas) {
  JudgeFile file = read_judge_file(path, file_format, canvas, judge_shapes(canvas));
  return Judge(file.config, std::move(file.weights));
}

void Judge::write(const std::filesystem::path& path) const {
  write_judge_file(path, file_format, config_, weights_);
}

double held_out_rate(const Judge& judge, std::int64_t count) {
  const Drawings drawings = draw(DrawnFor::holding_out, judge.config().seed, 0, count, judge.config().canvas);
  const at::Tensor right = judge.look(drawings.pictures).kinds.eq(drawings.kinds);
  return right.to(at::kDouble).mean().item<double>();
}

}  // namespace pom::eval
