#include "pom/diffusion/trajectory.h"

#include <limits>

#include <ATen/ops/empty_like.h>

#include "pom/base/error.h"
#include "pom/diffusion/arithmetic.h"

namespace pom::diffusion {
namespace {

std::vector<Level> levels_of(const Path& path, const SamplerOptions& options) {
  std::vector<Level> levels;
  for (const double t : time_grid(options))
    levels.push_back(t == 0 ? Level{0, 1, 0} : Level{t, path.alpha(t), path.sigma(t)});
  return levels;
}

}  // namespace

Trajectory::Trajectory(const Model& model, const at::Tensor& start, const Path& path,
                       const SamplerOptions& options, const StepNoise& noise, const OnStep& on_step)
    : x(start.clone(at::MemoryFormat::Contiguous)),
      model_(model),
      path_(path),
      options_(options),
      noise_(noise),
      on_step_(on_step),
      levels_(levels_of(path, options)) {}

at::Tensor Trajectory::buffer() const {
  return at::empty_like(x);
}

void Trajectory::predict(int i, const at::Tensor& noisy, const at::Tensor& x0) const {
  const double t = level(i).t;
  const at::Tensor answer = model_(noisy, t);
  check(answer.defined() && answer.sizes() == noisy.sizes(), "sample: model: expected an answer of shape ",
        noisy.sizes(), ", got ", answer.defined() ? detail::concat(answer.sizes()) : "nothing");
  const Path::Weights weights = path_.x0_weights(t);
  combine(x0, {{weights.x, noisy}, {weights.output, answer.to(noisy.options()).contiguous()}},
          options_.clamp.value_or(std::numeric_limits<double>::infinity()));
}

const at::Tensor& Trajectory::noise(int i) {
  if (!noise_buffer_.defined()) noise_buffer_ = buffer();
  noise_(noise_buffer_, static_cast<std::uint32_t>(i));
  return noise_buffer_;
}

void Trajectory::done(int i, const at::Tensor& x0) const {
  if (on_step_) on_step_(StepInfo{i + 1, steps(), level(i + 1).t, x, x0});
}

}  // namespace pom::diffusion
