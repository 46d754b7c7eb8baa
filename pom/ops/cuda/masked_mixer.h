// Private to CUDA builds: the mixer between its projections under causal masks of any blocks, with or without
// a window, and of packed sequences (pom/kernels/portable/masked_mixer.h). Projections are contiguous, (B, n,
// kD) or packed (total, kD).
#pragma once

#include <cuda_runtime_api.h>

#include "pom/ops/problem.h"

namespace pom::ops::cuda {

// sigmoid(se) H, like se. `sums`, if asked for, is what the backward pass need not make again: (saved_rows,
// kD) in fp32 as ops/cpu/layer.h counts them, none where blocks are short.
at::Tensor masked_forward(const Problem& problem, const at::Tensor& ho, const at::Tensor& se,
                          at::Tensor* sums, cudaStream_t stream);

struct MaskedGradients {
  at::Tensor dho, dse;            // like ho and se
  at::Tensor gated;               // the forward's result; with what follows only for the gradients of weights
  at::Tensor dho_sums, dse_sums;  // (any, kD), fp32: what the gradients of biases are the sums of
};
// From the gradient of the forward's result; `sums` as it was saved, or undefined.
MaskedGradients masked_backward(const Problem& problem, const at::Tensor& dgated, const at::Tensor& ho,
                                const at::Tensor& se, const at::Tensor& sums, bool for_weights,
                                cudaStream_t stream);

}  // namespace pom::ops::cuda
