#include "pom/ops/cuda/optimizer.h"

#include "pom/kernels/portable/adamw.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/weight_parts.h"

namespace pom::ops::cuda {

bool adamw(const AdamW& s) {
  if (!s.values.is_cuda() || s.values.scalar_type() != at::kFloat) return false;
  const detail::OnDevice device(s.values);
  const kernels::AdamWParams params{.p = s.values.data_ptr<float>(),
                                    .g = s.gradients.const_data_ptr<float>(),
                                    .m = s.moment1.data_ptr<float>(),
                                    .v = s.moment2.data_ptr<float>(),
                                    .ema = s.average.data_ptr<float>(),
                                    .n = s.values.numel(),
                                    .decayed = s.decayed,
                                    .lr = s.lr,
                                    .beta1 = s.beta1,
                                    .beta2 = s.beta2,
                                    .eps = s.eps,
                                    .weight_decay = s.weight_decay,
                                    .bias_correction1 = s.correction1,
                                    .bias_correction2 = s.correction2,
                                    .clip_scale = s.gradient_scale.const_data_ptr<float>(),
                                    .ema_decay = 1 - s.average_weight,
                                    .weights = weight_parts(s.copies)};
  detail::check_launch("adamw", kernels::adamw(params, device.stream()));
  return true;
}

}  // namespace pom::ops::cuda
