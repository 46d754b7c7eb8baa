// The feed-forward of training.h on CUDA: the fused GEMMs of training_gemms.h, and cuBLAS where there is
// none.
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "pom/ops/cuda/block.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/training_gemms.h"

namespace pom::ops::detail {
namespace {

at::Tensor rows(const at::Tensor& x) {  // (B, N, c) -> (B N, c)
  return x.view({x.size(0) * x.size(1), x.size(2)});
}

// Through gelu(before) W_down, by products of cuBLAS and passes between them.
cuda::GeluGradients plain_gelu_backward(const at::Tensor& dout, const at::Tensor& down,
                                        const at::Tensor& before) {
  const at::Tensor dafter = at::mm(rows(dout), down).view(before.sizes());
  const at::Tensor dbefore = at::gelu_backward(dafter, before);
  return {dbefore, at::gelu(before), at::sum(rows(dbefore), 0, /*keepdim=*/true, at::kFloat)};
}

}  // namespace

bool has_feed_forward_cuda(const at::Tensor& x, const at::Tensor& up) {
  const OnDevice device(x);
  return cuda::has_gelu_gemm(x, up);
}

FeedForward feed_forward_cuda(const at::Tensor& x, const FeedForwardWeights& w, bool save) {
  const OnDevice device(x);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);  // dtypes are chosen
  const cuda::Activated a = cuda::gelu_gemm(x, w.up, w.up_bias, save, device.stream());
  return {at::linear(a.after, w.down, w.down_bias), a.before};
}

FeedForwardBackward feed_forward_backward_cuda(const at::Tensor& dout, const at::Tensor& x,
                                               const FeedForwardWeights& w, const at::Tensor& before,
                                               bool need_x) {
  const OnDevice device(x);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);
  std::optional<cuda::GeluGradients> g = cuda::gelu_backward_gemm(dout, w.down, before, device.stream());
  if (!g) g = plain_gelu_backward(dout, w.down, before);
  const at::Tensor grad = rows(dout), dbefore = rows(g->dbefore);
  FeedForwardBackward r;
  if (need_x) r.dx = at::mm(dbefore, w.up).view(x.sizes());
  r.up = at::mm(dbefore.t(), rows(x)), r.up_bias = at::sum(g->sums, 0).to(x.scalar_type());
  r.down = at::mm(grad.t(), rows(g->after)), r.down_bias = at::sum(grad, 0);
  return r;
}

}  // namespace pom::ops::detail
