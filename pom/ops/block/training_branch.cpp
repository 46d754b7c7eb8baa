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

void check_context_of(const ResidualStream& stream, const MixerContext& context) {
  constexpr const char* op = "mixer_branch";
  const at::Tensor &x = stream.x, &told = context.tokens;
  detail::check_stream(op, "x", x);
  if (!told.defined()) return check_context(op, x, x, context.mask);
  detail::check_stream(op, "context", told);
  const std::int64_t B = x.size(0), texts = told.size(0);
  const bool parts = B >= 1 && texts >= 1 && texts % B == 0 && x.size(1) % (texts / B) == 0;
  check(parts && told.size(2) == x.size(2), op,
        ": context: expected one, or one for each of several equal parts, of ", B, " sequences of ",
        x.size(1), " tokens of ", x.size(2), " channels, got ", shape_text(told));
  check(context.mask.block == 0, op, ": mask: expected one of keys beside a context, got blocks of ",
        context.mask.block);
  check_context(op, detail::by_text(x, told), told, context.mask);
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
  check_context_of(stream, context);
  if (const auto made = detail::mixer_branch_cuda(stream, m, w, order, context)) return *made;
  const auto [sum, normal] = normed(stream, m);
  if (!context.tokens.defined()) return {.x = sum, .y = mixer_layer(normal, normal, w, order, context.mask)};
  const at::Tensor y =
      mixer_layer(detail::by_text(normal, context.tokens), context.tokens, w, order, context.mask);
  return {.x = sum, .y = y.view(normal.sizes())};
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
