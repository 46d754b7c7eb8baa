// The modulated norms and gates of training.h on CUDA: allocation, and a launch of the kernels of
// modulation.h and gated_norm.h.
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "pom/kernels/portable/gated_norm.h"
#include "pom/ops/cuda/block.h"
#include "pom/ops/cuda/launch.h"

namespace pom::ops::detail {
namespace {

kernels::RowSizes sizes_of(const at::Tensor& x) {
  return {x.size(0), x.size(1), x.size(2)};
}
void check_width(const char* op, const at::Tensor& x) {
  check(x.size(2) <= kernels::kMaxNormWidth, op, ": x: expected at most ", kernels::kMaxNormWidth,
        " channels on CUDA, got ", x.size(2));
}
at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

struct GatedNormInputs {
  const at::Tensor &dsum, &dout, &sum, &y, &gate, &scale, &mean, &rstd;
  double base;
};

// Fills r; where it has a place for the norm's result once more, that too.
void gated_norm_backward(GatedNormAgain& r, const GatedNormInputs& in, const at::Tensor& shift,
                         const at::Tensor& bias) {
  constexpr const char* op = "gated_add_norm";
  check_width(op, in.sum);
  const OnDevice device(in.sum);
  r.dx = at::empty(in.sum.sizes(), in.sum.options()), r.dy = at::empty(in.y.sizes(), in.y.options());
  r.dgate = floats(in.gate.sizes(), in.sum);
  r.dscale = floats(in.scale.sizes(), in.sum), r.dshift = floats(in.scale.sizes(), in.sum);
  kernels::GatedNormBackwardParams p;
  p.sizes = sizes_of(in.sum), p.x_dtype = kernel_dtype(in.sum), p.y_dtype = kernel_dtype(in.y);
  const at::Tensor scratch = floats({kernels::gated_norm_scratch(p.sizes, r.again.defined())}, in.sum);
  p.dsum = in.dsum.defined() ? in.dsum.const_data_ptr() : nullptr, p.dout = in.dout.const_data_ptr();
  p.sum = in.sum.const_data_ptr(), p.y = in.y.const_data_ptr(), p.gate = in.gate.const_data_ptr<float>();
  p.scale = in.scale.const_data_ptr<float>(), p.mean = in.mean.const_data_ptr<float>();
  p.rstd = in.rstd.const_data_ptr<float>(), p.base = static_cast<float>(in.base);
  p.scratch = scratch.mutable_data_ptr<float>();
  p.dx = r.dx.mutable_data_ptr(), p.dy = r.dy.mutable_data_ptr();
  p.dgate = r.dgate.mutable_data_ptr<float>(), p.dscale = r.dscale.mutable_data_ptr<float>();
  p.dshift = r.dshift.mutable_data_ptr<float>();
  if (r.again.defined()) p.again = r.again.mutable_data_ptr(), p.shift = shift.const_data_ptr<float>();
  if (bias.defined()) p.bias = bias.const_data_ptr<float>(), p.dbias = r.dbias.mutable_data_ptr<float>();
  check_launch(op, kernels::gated_norm_backward(p, device.stream()));
}

}  // namespace

NormForward modulated_norm_forward_cuda(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                        double eps, at::ScalarType out_dtype) {
  constexpr const char* op = "modulated_norm";
  check_width(op, x);
  const OnDevice device(x);
  NormForward r{at::empty(x.sizes(), x.options().dtype(out_dtype)), floats({x.size(0), x.size(1)}, x),
                floats({x.size(0), x.size(1)}, x)};
  kernels::NormParams p;
  p.sizes = sizes_of(x), p.x_dtype = kernel_dtype(x), p.out_dtype = kernel_dtype(r.out);
  p.x = x.const_data_ptr(), p.eps = static_cast<float>(eps), p.out = r.out.mutable_data_ptr();
  p.scale = scale.const_data_ptr<float>(), p.shift = shift.const_data_ptr<float>();
  p.mean = r.mean.mutable_data_ptr<float>(), p.rstd = r.rstd.mutable_data_ptr<float>();
  check_launch(op, kernels::modulated_norm(p, device.stream()));
  return r;
}

NormBackward modulated_norm_backward_cuda(const at::Tensor& dout, const at::Tensor& x,
                                          const at::Tensor& scale, const at::Tensor& mean,
                                          const at::Tensor& rstd) {
  constexpr const char* op = "modulated_norm";
  check_width(op, x);
  const OnDevice device(x);
  NormBackward r{at::empty(x.sizes(), x.options()), floats(scale.sizes(), x), floats(scale.sizes(), x)};
  kernels::NormBackwardParams p;
  p.sizes = sizes_of(x), p.x_dtype = kernel_dtype(x), p.dout_dtype = kernel_dtype(dout);
  const int parts = kernels::norm_parts(p.sizes);
  const at::Tensor scratch = floats({parts > 1 ? 2 * x.size(0) * parts * x.size(2) : 0}, x);
  p.dout = dout.const_data_ptr(), p.x = x.const_data_ptr(), p.scale = scale.const_data_ptr<float>();
  p.mean = mean.const_data_ptr<float>(), p.rstd = rstd.const_data_ptr<float>();
  p.scratch = scratch.mutable_data_ptr<float>(), p.dx = r.dx.mutable_data_ptr();
  p.dscale = r.dscale.mutable_data_ptr<float>(), p.dshift = r.dshift.mutable_data_ptr<float>();
  check_launch(op, kernels::modulated_norm_backward(p, device.stream()));
  return r;
}

at::Tensor gated_add_forward_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                  double base) {
  const OnDevice device(x);
  at::Tensor out = at::empty(x.sizes(), x.options());
  kernels::GatedAddParams p;
  p.sizes = sizes_of(x), p.x_dtype = kernel_dtype(x), p.y_dtype = kernel_dtype(y);
  p.x = x.const_data_ptr(), p.y = y.const_data_ptr(), p.gate = gate.const_data_ptr<float>();
  p.base = static_cast<float>(base), p.out = out.mutable_data_ptr();
  check_launch("gated_add", kernels::gated_add(p, device.stream()));
  return out;
}

GateBackward gated_add_backward_cuda(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& gate,
                                     double base) {
  const OnDevice device(y);
  GateBackward r{at::empty(y.sizes(), y.options()), floats(gate.sizes(), y)};
  kernels::GatedAddBackwardParams p;
  p.sizes = sizes_of(y), p.dout_dtype = kernel_dtype(dout), p.y_dtype = kernel_dtype(y);
  const int parts = kernels::gate_parts(p.sizes);
  const at::Tensor scratch = floats({parts > 1 ? y.size(0) * parts * y.size(2) : 0}, y);
  p.dout = dout.const_data_ptr(), p.y = y.const_data_ptr(), p.gate = gate.const_data_ptr<float>();
  p.base = static_cast<float>(base), p.scratch = scratch.mutable_data_ptr<float>();
  p.dy = r.dy.mutable_data_ptr(), p.dgate = r.dgate.mutable_data_ptr<float>();
  check_launch("gated_add", kernels::gated_add_backward(p, device.stream()));
  return r;
}

GatedNormForward gated_add_norm_forward_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                             double base, const at::Tensor& scale, const at::Tensor& shift,
                                             double eps, const at::Tensor& bias) {
  constexpr const char* op = "gated_add_norm";
  check_width(op, x);
  const OnDevice device(x);
  GatedNormForward r{at::empty(x.sizes(), x.options()), at::empty(y.sizes(), y.options()),
                     floats({x.size(0), x.size(1)}, x), floats({x.size(0), x.size(1)}, x)};
  kernels::GatedNormParams p;
  p.sizes = sizes_of(x), p.x_dtype = kernel_dtype(x), p.y_dtype = kernel_dtype(y);
  p.x = x.const_data_ptr(), p.y = y.const_data_ptr(), p.gate = gate.const_data_ptr<float>();
  p.scale = scale.const_data_ptr<float>(), p.shift = shift.const_data_ptr<float>();
  if (bias.defined()) p.bias = bias.const_data_ptr<float>();
  p.base = static_cast<float>(base), p.eps = static_cast<float>(eps);
  p.sum = r.sum.mutable_data_ptr(), p.out = r.out.mutable_data_ptr();
  p.mean = r.mean.mutable_data_ptr<float>(), p.rstd = r.rstd.mutable_data_ptr<float>();
  check_launch(op, kernels::gated_norm(p, device.stream()));
  return r;
}

GatedNormBackward gated_add_norm_backward_cuda(const at::Tensor& dsum, const at::Tensor& dout,
                                               const at::Tensor& sum, const at::Tensor& y,
                                               const at::Tensor& gate, double base, const at::Tensor& scale,
                                               const at::Tensor& mean, const at::Tensor& rstd) {
  GatedNormAgain r;
  gated_norm_backward(r, {dsum, dout, sum, y, gate, scale, mean, rstd, base}, {}, {});
  return r;
}

GatedNormAgain gated_add_norm_again_cuda(const at::Tensor& dsum, const at::Tensor& dout,
                                         const at::Tensor& sum, const at::Tensor& y, const at::Tensor& gate,
                                         double base, const at::Tensor& scale, const at::Tensor& shift,
                                         const at::Tensor& mean, const at::Tensor& rstd,
                                         const at::Tensor& bias) {
  GatedNormAgain r;
  r.again = at::empty(y.sizes(), y.options());
  if (bias.defined()) r.dbias = floats(bias.sizes(), sum);
  gated_norm_backward(r, {dsum, dout, sum, y, gate, scale, mean, rstd, base}, shift, bias);
  return r;
}

}  // namespace pom::ops::detail
