#include "pom/ops/block/conditions.h"

#include <ATen/ops/linear.h>

#include "pom/ops/block/training_common.h"
#include "pom/ops/cuda/block.h"

namespace pom::ops {
namespace {

// The parts of (B or more, parts d): one copy for all of them.
std::vector<at::Tensor> parts_of(const at::Tensor& values, std::int64_t parts, const at::Tensor& stream) {
  return values.narrow(0, 0, stream.size(0))
      .unflatten(-1, {parts, -1})
      .transpose(0, 1)
      .to(values.options().dtype(detail::sum_type(stream)), /*non_blocking=*/false, /*copy=*/false,
          at::MemoryFormat::Contiguous)
      .contiguous()
      .unbind(0);
}

}  // namespace

std::vector<at::Tensor> conditions(const at::Tensor& s, const std::vector<ConditionMatrix>& matrices,
                                   const at::Tensor& stream) {
  if (auto made = detail::conditions_cuda(s, matrices, stream)) return *std::move(made);
  std::vector<at::Tensor> result;
  for (const ConditionMatrix& m : matrices)
    for (at::Tensor& part : parts_of(at::linear(s, m.weight, m.bias), m.parts, stream))
      result.push_back(std::move(part));
  return result;
}

}  // namespace pom::ops
