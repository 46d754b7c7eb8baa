// The operations of training.h and mixer.h one after another; on CUDA training_branch_cuda.cpp where it can.
#include "pom/ops/block/training_branch.h"

#include <ATen/ops/add.h>

#include "pom/ops/block/training.h"
#include "pom/ops/block/training_common.h"
#include "pom/ops/cuda/block.h"

namespace pom::ops {
namespace {

at::Tensor with_bias(const ResidualStream& s) {
  return s.bias.defined() ? at::add(s.y, s.bias.to(s.y.scalar_type())) : s.y;
}

}  // namespace

at::Tensor taken(const ResidualStream& s) {
  return s.y.defined() ? gated_add(s.x, with_bias(s), s.gate, s.base) : s.x;
}

std::pair<at::Tensor, at::Tensor> normed(const ResidualStream& s, const Modulation& m) {
  if (!s.y.defined()) return {s.x, modulated_norm(s.x, m.scale, m.shift, m.eps)};
  return gated_add_norm(s.x, with_bias(s), s.gate, s.base, m.scale, m.shift, m.eps);
}

ResidualStream mixer_branch(const ResidualStream& stream, const Modulation& m, const LayerWeights& w,
                            std::int64_t order, const MixerContext& context) {
  if (const at::Tensor& told = context.tokens; told.defined()) {
    detail::check_stream("mixer_branch", "context", told);
    const std::int64_t texts = told.size(0), tokens = stream.x.size(0) * stream.x.size(1);
    check(texts >= 1 && texts % stream.x.size(0) == 0 && tokens % texts == 0 &&
              told.size(2) == stream.x.size(2),
          "mixer_branch: context: expected one, or one for each of several equal parts, of ",
          stream.x.size(0), " sequences of ", stream.x.size(1), " tokens of ", stream.x.size(2),
          " channels, got ", shape_text(told));
  }
  if (const auto made = detail::mixer_branch_cuda(stream, m, w, order, context)) return *made;
  const auto [sum, normal] = normed(stream, m);
  if (!context.tokens.defined()) return {.x = sum, .y = mixer_layer(normal, normal, w, order, context.mask)};
  const at::Tensor by_text = normal.view({context.tokens.size(0), -1, normal.size(2)});
  return {.x = sum, .y = mixer_layer(by_text, context.tokens, w, order, context.mask).view(normal.sizes())};
}

ResidualStream feed_forward_branch(const ResidualStream& stream, const Modulation& m, const at::Tensor& up,
                                   const at::Tensor& up_bias, const at::Tensor& down,
                                   const at::Tensor& down_bias) {
  if (const auto made = detail::feed_forward_branch_cuda(stream, m, up, up_bias, down, down_bias))
    return *made;
  const auto [sum, normal] = normed(stream, m);
  return {.x = sum, .y = feed_forward(normal, up, up_bias, down, down_bias)};
}

}  // namespace pom::ops
