#include "pom/ops/cuda/masked_mixer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "pom/kernels/portable/masked_mixer.h"
#include "pom/ops/cpu/layer.h"
#include "pom/ops/cuda/launch.h"

namespace pom::ops::cuda {
namespace {

using detail::check_launch;

at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

// The plan of a call, and its table on the device for as long as kernels are launched.
struct Plan {
  kernels::MaskedPlan plan;
  at::Tensor table;
};
Plan plan_of(const Problem& p, const at::Tensor& ho, const at::Tensor& se) {
  const kernels::MaskedSizes sizes{detail::kernel_dtype(ho), p.D, static_cast<int>(p.order), p.block,
                                   p.window};
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const std::int64_t rows = std::max(ho.numel(), se.numel()) / p.kD();
  check(rows < most, "mixer: tokens: expected fewer than 2^30 in a call under a mask on CUDA, got ", rows);
  if (!p.packed) return {masked_plan(sizes, ho.size(0), se.size(1), ho.size(1)), {}};
  Plan r{masked_plan(sizes, p.queries, p.keys), {}};
  r.table = at::tensor(at::ArrayRef<std::int32_t>(r.plan.table), at::kInt).to(ho.device());
  r.plan.place(r.table.const_data_ptr<std::int32_t>());
  return r;
}

}  // namespace

at::Tensor masked_forward(const Problem& problem, const at::Tensor& ho, const at::Tensor& se,
                          at::Tensor* sums, cudaStream_t stream) {
  const Plan p = plan_of(problem, ho, se);
  at::Tensor out = at::empty(se.sizes(), se.options());
  const at::Tensor scratch = floats({masked_forward_scratch(p.plan)}, ho);
  kernels::MaskedForward f;
  f.ho = ho.const_data_ptr(), f.se = se.const_data_ptr(), f.out = out.mutable_data_ptr();
  f.scratch = scratch.mutable_data_ptr<float>();
  if (sums) {
    const std::int64_t rows = cpu::saved_rows(problem);
    *sums = floats({rows, problem.kD()}, ho);
    if (rows >= p.plan.slot_count() && !p.plan.scans()) f.sums = sums->mutable_data_ptr<float>();
  }
  check_launch("mixer", masked_mixer(p.plan, f, stream));
  return out;
}

MaskedGradients masked_backward(const Problem& problem, const at::Tensor& dgated, const at::Tensor& ho,
                                const at::Tensor& se, const at::Tensor& sums, bool for_weights,
                                cudaStream_t stream) {
  const Plan p = plan_of(problem, ho, se);
  MaskedGradients r{at::empty(ho.sizes(), ho.options()), at::empty(se.sizes(), se.options()), {}, {}, {}};
  const at::Tensor scratch = floats({masked_backward_scratch(p.plan)}, ho);
  kernels::MaskedBackward b;
  b.dout = dgated.const_data_ptr(), b.ho = ho.const_data_ptr(), b.se = se.const_data_ptr();
  if (sums.defined() && sums.size(0) >= p.plan.slot_count() && !p.plan.scans())
    b.sums = sums.const_data_ptr<float>();
  b.scratch = scratch.mutable_data_ptr<float>();
  b.dho = r.dho.mutable_data_ptr(), b.dse = r.dse.mutable_data_ptr();
  if (for_weights) {
    r.gated = at::empty(se.sizes(), se.options());
    r.dho_sums = floats({p.plan.keys.pieces, problem.kD()}, ho);
    r.dse_sums = floats({p.plan.queries.pieces, problem.kD()}, ho);
    b.gated = r.gated.mutable_data_ptr();
    b.dho_sums = r.dho_sums.mutable_data_ptr<float>(), b.dse_sums = r.dse_sums.mutable_data_ptr<float>();
  }
  check_launch("mixer_backward", masked_mixer_backward(p.plan, b, stream));
  return r;
}

}  // namespace pom::ops::cuda
