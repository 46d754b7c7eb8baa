#include "pom/diffusion/sampler.h"

#include <ATen/core/grad_mode.h>

#include "pom/base/error.h"
#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {

at::Tensor sample(const Model& model, const at::Tensor& x, const Path& path, std::string_view name,
                  const SamplerOptions& options, const StepNoise& noise, const OnStep& on_step) {
  const Sampler& sampler = checked_sampler(name, options);
  check(static_cast<bool>(model), "sample: model: expected a function, got none");
  check(x.defined() && x.dim() >= 1 && x.is_floating_point(),
        "sample: x: expected floating-point images (B, ...), got ",
        x.defined() ? detail::concat(x.scalar_type(), " of shape ", x.sizes()) : "nothing");
  check(static_cast<bool>(noise) || !needs_noise(sampler, options), "sample: noise: the sampler ",
        sampler.name, " needs some with eta ", options.eta, ", got none");
  const at::NoGradGuard no_grad;
  Trajectory trajectory(model, x, path, options, noise, on_step);
  sampler.run(trajectory);
  return trajectory.x;
}

}  // namespace pom::diffusion
