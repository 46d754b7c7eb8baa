// What modulates a block, out of its condition. B pictures, d width.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::ops {

struct ConditionMatrix {
  at::Tensor weight, bias;  // (parts d, K), (parts d)
  std::int64_t parts = 1;
};

// The parts (B, d) of s W^T + bias, of all matrices one after another: dense, fp32 (fp64 where the stream
// is). s (B or more, K); rows beyond the B of `stream` (B, N, d) are left. On CUDA fp32 weights are read as
// they are, and written once in the backward pass, where gradients are wanted and the batch is small;
// autocast lowers the others.
std::vector<at::Tensor> conditions(const at::Tensor& s, const std::vector<ConditionMatrix>& matrices,
                                   const at::Tensor& stream);

}  // namespace pom::ops
