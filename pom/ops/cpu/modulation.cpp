// The CPU half of training_backend.h.
#include "pom/ops/cpu/modulation.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "pom/ops/block/training_backend.h"
#include "pom/ops/cpu/run.h"

namespace pom::ops::detail {
namespace {

using cpu::ModulationArgs;
using cpu::ModulationKernels;

ModulationArgs arguments(const at::Tensor& x) {
  ModulationArgs a;
  a.pictures = x.size(0), a.tokens = x.size(1), a.d = x.size(2);
  return a;
}

at::Tensor per_token(const at::Tensor& x) {
  return at::empty({x.size(0), x.size(1)}, cpu::sums_like(x));
}

const ModulationKernels& kernels(const at::Tensor& stream, const at::Tensor& branch) {
  return cpu::modulation_table(cpu::dtype_of(stream), cpu::dtype_of(branch));
}

void run_forward(const ModulationKernels& k, const ModulationArgs& a) {
  at::parallel_for(0, a.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) k.forward(a, block);
  });
}

void run_backward(const ModulationKernels& k, ModulationArgs a, std::size_t element) {
  const cpu::Workspace sums(static_cast<std::size_t>(a.blocks() * ModulationArgs::kSums * a.d) * element);
  a.sums = sums.data();
  at::parallel_for(0, a.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) k.backward(a, block);
  });
  for (std::int64_t picture = 0; picture < a.pictures; ++picture) k.fold(a, picture);
}

}  // namespace

NormForward modulated_norm_forward_cpu(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                                       double eps, at::ScalarType out_dtype) {
  NormForward result{at::empty(x.sizes(), x.options().dtype(out_dtype)), per_token(x), per_token(x)};
  ModulationArgs a = arguments(x);
  a.x = x.const_data_ptr(), a.eps = eps;
  a.scale = scale.const_data_ptr(), a.shift = shift.const_data_ptr();
  a.out = result.out.data_ptr(), a.mean = result.mean.data_ptr(), a.rstd = result.rstd.data_ptr();
  run_forward(kernels(x, result.out), a);
  return result;
}

NormBackward modulated_norm_backward_cpu(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& scale,
                                         const at::Tensor& mean, const at::Tensor& rstd) {
  NormBackward result{at::empty_like(x), at::empty_like(scale), at::empty_like(scale)};
  ModulationArgs a = arguments(x);
  a.x = x.const_data_ptr(), a.scale = scale.const_data_ptr();
  a.mean = mean.data_ptr(), a.rstd = rstd.data_ptr();
  a.dout = dout.const_data_ptr(), a.dx = result.dx.data_ptr();
  a.dscale = result.dscale.data_ptr(), a.dshift = result.dshift.data_ptr();
  run_backward(kernels(x, dout), a, scale.element_size());
  return result;
}

at::Tensor gated_add_forward_cpu(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                 double base) {
  at::Tensor sum = at::empty_like(x);
  ModulationArgs a = arguments(x);
  a.x = x.const_data_ptr(), a.y = y.const_data_ptr(), a.gate = gate.const_data_ptr(), a.base = base;
  a.sum = sum.data_ptr();
  run_forward(kernels(x, y), a);
  return sum;
}

GateBackward gated_add_backward_cpu(const at::Tensor& dout, const at::Tensor& y, const at::Tensor& gate,
                                    double base) {
  GateBackward result{at::empty_like(y), at::empty_like(gate)};
  ModulationArgs a = arguments(y);
  a.y = y.const_data_ptr(), a.gate = gate.const_data_ptr(), a.base = base;
  a.dsum = dout.const_data_ptr(), a.dy = result.dy.data_ptr(), a.dgate = result.dgate.data_ptr();
  run_backward(kernels(dout, y), a, gate.element_size());
  return result;
}

GatedNormForward gated_add_norm_forward_cpu(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                            double base, const at::Tensor& scale, const at::Tensor& shift,
                                            double eps) {
  GatedNormForward result{at::empty_like(x), at::empty_like(y), per_token(x), per_token(x)};
  ModulationArgs a = arguments(x);
  a.x = x.const_data_ptr(), a.y = y.const_data_ptr(), a.gate = gate.const_data_ptr(), a.base = base;
  a.sum = result.sum.data_ptr(), a.eps = eps;
  a.scale = scale.const_data_ptr(), a.shift = shift.const_data_ptr();
  a.out = result.out.data_ptr(), a.mean = result.mean.data_ptr(), a.rstd = result.rstd.data_ptr();
  run_forward(kernels(x, y), a);
  return result;
}

GatedNormBackward gated_add_norm_backward_cpu(const at::Tensor& dsum, const at::Tensor& dout,
                                              const at::Tensor& sum, const at::Tensor& y,
                                              const at::Tensor& gate, double base, const at::Tensor& scale,
                                              const at::Tensor& mean, const at::Tensor& rstd) {
  GatedNormBackward result{at::empty_like(sum), at::empty_like(y), at::empty_like(gate),
                           at::empty_like(scale), at::empty_like(scale)};
  ModulationArgs a = arguments(sum);
  a.x = sum.const_data_ptr(), a.y = y.const_data_ptr(), a.gate = gate.const_data_ptr(), a.base = base;
  a.scale = scale.const_data_ptr(), a.mean = mean.data_ptr(), a.rstd = rstd.data_ptr();
  a.dsum = dsum.defined() ? dsum.const_data_ptr() : nullptr, a.dout = dout.const_data_ptr();
  a.dx = result.dx.data_ptr(), a.dy = result.dy.data_ptr(), a.dgate = result.dgate.data_ptr();
  a.dscale = result.dscale.data_ptr(), a.dshift = result.dshift.data_ptr();
  run_backward(kernels(sum, y), a, scale.element_size());
  return result;
}

}  // namespace pom::ops::detail
