// The feed-forward layer of training_backend.h on torch's threads.
#include "pom/ops/cpu/feed_forward.h"

#include <memory>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "pom/ops/block/training_backend.h"
#include "pom/ops/cpu/plan.h"
#include "pom/ops/cpu/run.h"

namespace pom::ops::detail {
namespace {

using cpu::FeedForwardArgs;
using cpu::FeedForwardKernels;

FeedForwardArgs arguments(const at::Tensor& x, const FeedForwardWeights& w) {
  FeedForwardArgs a;
  a.in = w.up.size(1), a.hidden = w.up.size(0), a.out = w.down.size(0);
  a.rows = x.numel() / a.in;
  a.group = cpu::group_size(1, a.hidden);
  a.tile = cpu::tile_size(a.rows);
  a.x = x.const_data_ptr();
  a.w1 = {w.up.const_data_ptr(), a.in}, a.w2 = {w.down.const_data_ptr(), a.hidden};
  a.b1 = w.up_bias.const_data_ptr(), a.b2 = w.down_bias.const_data_ptr();
  return a;
}

std::vector<std::int64_t> with_last(const at::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

std::int64_t whole_panels(std::int64_t n, int panel) {
  return (n + panel - 1) / panel * panel;
}

}  // namespace

FeedForward feed_forward_cpu(const at::Tensor& x, const FeedForwardWeights& w, bool save) {
  FeedForwardArgs a = arguments(x, w);
  FeedForward result{at::empty(with_last(x, a.out), x.options()), {}};
  if (save) result.before = at::empty(with_last(x, a.hidden), x.options());
  a.y = result.out.data_ptr();
  a.saved = save ? result.before.data_ptr() : nullptr;
  const FeedForwardKernels& kernels = cpu::feed_forward_table(cpu::dtype_of(x));
  cpu::run_tasks(a.tiles(), kernels.scratch(a),
                 [&](void* scratch, std::int64_t tile) { kernels.forward(a, scratch, tile); });
  return result;
}

FeedForwardBackward feed_forward_backward_cpu(const at::Tensor& dout, const at::Tensor& x,
                                              const FeedForwardWeights& w, const at::Tensor& before,
                                              bool need_x) {
  FeedForwardArgs a = arguments(x, w);
  if (a.rows == 0)
    return {at::zeros_like(x), at::zeros_like(w.up), at::zeros_like(w.up_bias), at::zeros_like(w.down),
            at::zeros_like(w.down_bias)};
  const FeedForwardKernels& kernels = cpu::feed_forward_table(cpu::dtype_of(x));
  const at::TensorOptions sums = cpu::sums_like(x);
  FeedForwardBackward g{need_x ? at::empty_like(x) : at::Tensor(), at::empty_like(w.up),
                        at::empty({a.hidden}, sums), at::empty_like(w.down), at::empty({a.out}, sums)};
  a.dy = dout.const_data_ptr(), a.saved = before.data_ptr();
  a.dx = need_x ? g.dx.data_ptr() : nullptr;
  a.gw1 = g.up.data_ptr(), a.gw2 = g.down.data_ptr();
  a.db1 = g.up_bias.data_ptr(), a.db2 = g.down_bias.data_ptr();
  a.ld1 = whole_panels(a.in, kernels.panel), a.ld2 = whole_panels(a.out, kernels.panel);
  const bool in_place = a.ld1 == a.in && sums.dtype() == x.dtype();
  const std::size_t element = sums.dtype().itemsize(),
                    second = static_cast<std::size_t>(a.hidden * a.ld2) * element;
  const cpu::Workspace memory(second + (in_place ? 0 : static_cast<std::size_t>(a.hidden * a.ld1) * element));
  a.dw2_t = memory.data();
  a.dw1 = in_place ? a.gw1 : static_cast<char*>(memory.data()) + second;
  const auto done = std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(a.groups()));
  a.done = done.get();
  cpu::run_tasks(a.tiles(), kernels.scratch(a),
                 [&](void* scratch, std::int64_t tile) { kernels.backward(a, scratch, tile); });
  g.up_bias = g.up_bias.to(x.scalar_type()), g.down_bias = g.down_bias.to(x.scalar_type());
  return g;
}

}  // namespace pom::ops::detail
