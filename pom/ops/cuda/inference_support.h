// Private to the room: which of the kernels for sampling there are for a shape, a dtype and a GPU.
// B sequences, N tokens, K values in, d width, D features of one degree.
#pragma once

#include <initializer_list>

#include <ATen/core/Tensor.h>

#include "pom/kernels/common/dtype.h"
#include "pom/ops/block/inference.h"

namespace pom::ops::cuda::sampling {

using kernels::Dtype;

bool half_precision(const at::Tensor& t);
bool aligned(const at::Tensor& t);  // or becomes so, being copied
at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like);
Dtype dtype_of(const at::Tensor& t);

// For x (B, N, K) times this weight (N', K). Operands that are made here are as aligned as anything.
bool has_gemm(const at::Tensor& x, const at::Tensor& weight, Dtype dtype);
// Few rows have kernels for any sizes, on any GPU of compute capability 8.0 and newer.
bool few(const at::Tensor& x, const at::Tensor& weight);
bool few_sums(const at::Tensor& x, const at::Tensor& weight, std::int64_t order);
bool has_rows(const at::Tensor& x, const at::Tensor& weight, Dtype dtype);
bool has_sums(std::int64_t batch, std::int64_t order, std::int64_t D);

bool has_stream(const at::Tensor& x);
// One stride serves the modulation's two tensors.
bool has_norm(const at::Tensor& x, const Modulation& m);

Dtype gemm_dtype(const at::Tensor& weight, const Fp8& fp8);

// Kernels for every weight, in the dtype of their products; also in fp8 where that is going to be asked for.
// Nobody who asks for fp8 gets something else.
bool has_gemms(const char* op, const at::Tensor& x, std::initializer_list<at::Tensor> weights, bool others,
               const Fp8& fp8);

}  // namespace pom::ops::cuda::sampling
