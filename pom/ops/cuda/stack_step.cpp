// One recurrent step of a whole stack as one kernel.
#include "pom/kernels/sm90/decode/stack_step.h"

#include <vector>

#include <ATen/ops/empty.h>

#include "pom/kernels/sm90/gemm/gemm.h"
#include "pom/ops/cuda/block.h"
#include "pom/ops/cuda/launch.h"

namespace pom::ops::cuda {
namespace {

const float* bias_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

}  // namespace

bool stack_step(at::Tensor& x, std::span<const SteppedBlock> blocks, const at::Tensor& modulation,
                at::Tensor& sums, at::Tensor& count, std::int64_t order, double eps) {
  const SteppedBlock& first = blocks.front();
  const at::ScalarType dtype = first.up.weight.scalar_type();
  if (!x.is_cuda() || (dtype != at::kBFloat16 && dtype != at::kHalf)) return false;
  if (order > kernels::kMostStackOrder || x.size(0) > kernels::kMostStackRows) return false;
  const detail::OnDevice device(x);
  if (!kernels::gemm_device()) return false;
  std::vector<kernels::StackLayer> layers(blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const SteppedBlock& b = blocks[i];
    const std::int64_t layer = static_cast<std::int64_t>(i);
    kernels::StackLayer& l = layers[i];
    l.context = b.mixer.ho_weight.const_data_ptr(), l.context_bias = bias_of(b.mixer.ho_bias);
    l.gate = b.mixer.se_weight.const_data_ptr(), l.gate_bias = bias_of(b.mixer.se_bias);
    l.out = b.mixer.ag_weight.const_data_ptr(), l.out_bias = bias_of(b.mixer.ag_bias);
    l.up = b.up.weight.const_data_ptr(), l.up_bias = bias_of(b.up.bias);
    l.down = b.down.weight.const_data_ptr(), l.down_bias = bias_of(b.down.bias);
    l.modulation = modulation.const_data_ptr<float>() + layer * modulation.stride(0);
    l.sum = sums.mutable_data_ptr<float>() + layer * sums.stride(0);
    l.count = count.const_data_ptr<std::int64_t>();
  }
  layers.back().next_count = count.mutable_data_ptr<std::int64_t>();  // which all blocks have read by then
  kernels::StackStep step;
  step.dtype = detail::kernel_dtype(first.up.weight);
  step.rows = x.size(0), step.width = x.size(1), step.order = static_cast<int>(order);
  step.features = first.mixer.ho_weight.size(0) / order, step.hidden = first.up.weight.size(0);
  step.modulation_stride = modulation.stride(1), step.eps = static_cast<float>(eps);
  step.layers = layers.data(), step.layer_count = static_cast<std::int64_t>(layers.size());
  step.x = x.mutable_data_ptr<float>();
  const at::Tensor workspace = at::empty({kernels::stack_step_workspace(step)}, x.options().dtype(at::kByte));
  step.workspace = workspace.mutable_data_ptr();
  if (!kernels::stack_step_supported(step)) return false;
  detail::check_launch("stack_step", kernels::stack_step(step, device.stream()));
  return true;
}

}  // namespace pom::ops::cuda
