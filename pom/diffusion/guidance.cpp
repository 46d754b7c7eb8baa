#include "pom/diffusion/guidance.h"

#include <cmath>
#include <utility>

#include <ATen/ops/empty_like.h>

#include "pom/base/error.h"
#include "pom/diffusion/arithmetic.h"

namespace pom::diffusion {
namespace {

void check_guidance(const Guidance& guidance) {
  check(std::isfinite(guidance.scale), "guide: scale: expected a finite number, got ", guidance.scale);
  check(guidance.from >= 0 && guidance.from <= guidance.to && guidance.to <= 1,
        "guide: interval: expected 0 <= from <= to <= 1, got ", guidance.from, " to ", guidance.to);
  check(guidance.channels >= 0, "guide: channels: expected at least 0, got ", guidance.channels);
}

at::Tensor push(const at::Tensor& both, const Guidance& guidance) {
  const std::int64_t half = both.size(0) / 2;
  const at::Tensor c = both.narrow(0, 0, half), u = both.narrow(0, half, half);
  const at::Tensor out = at::empty_like(c, at::MemoryFormat::Contiguous);
  combine(out, {{guidance.scale, c}, {1 - guidance.scale, u}});
  const std::int64_t led = guidance.channels;
  if (led > 0 && led < c.size(1)) out.slice(1, led).copy_(c.slice(1, led));
  return out;
}

}  // namespace

Model guide(PairModel model, const Guidance& guidance) {
  check(static_cast<bool>(model), "guide: model: expected a function, got none");
  check_guidance(guidance);
  return [model = std::move(model), guidance](const at::Tensor& x, double t) {
    const bool both = guidance.acts_at(t);
    const at::Tensor answer = model(x, t, both);
    const std::int64_t rows = both ? 2 * x.size(0) : x.size(0);
    check(answer.dim() == x.dim() && answer.size(0) == rows, "guide: model: expected ", rows, " rows for ",
          x.size(0), " images, got shape ", answer.sizes());
    return both ? push(answer.contiguous(), guidance) : answer;
  };
}

}  // namespace pom::diffusion
