// Private to the room: the rows and weights that the products of sampling read, and how one is launched.
// B sequences, N tokens, K values.
#pragma once

#include <functional>
#include <optional>

#include "pom/kernels/portable/few_rows_gemm.h"
#include "pom/kernels/sm90/gemm/gemm.h"
#include "pom/ops/cuda/inference_support.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/prepared_weights.h"

namespace pom::ops::cuda::sampling {

using ops::detail::check_launch;
using ops::detail::OnDevice;

// What a product reads: (B, N, K), in e4m3 with a scale of each row (B N) or of several. Of few rows the
// stream itself, whose norm the product takes.
struct Rows {
  at::Tensor values, scale;
  const Modulation* norm = nullptr;
  std::int64_t scale_rows = 1;  // that share a scale
};

// The stream of an operator, and whether its last launch was a product of few rows, behind which the next
// may read its weights ahead.
struct Queue {
  cudaStream_t stream;
  bool settled = false;
};

// A weight beside its bias, as the kernels read them.
struct Matrix {
  PreparedWeight weight, bias;
};
Matrix matrix(const Dense& dense, Dtype dtype, std::int64_t order = 0);

const float* floats_of(const at::Tensor& t);  // null where undefined

kernels::Gemm gemm_of(const Rows& a, const Matrix& w);

// A product of a network that samples takes the fastest tile; and in its graph, before which all copies of
// its weights were made, it reads them early. `rehearse` is like `run` and does no harm.
using Run = std::function<cudaError_t(const kernels::Gemm&)>;
void launch(const char* op, kernels::Gemm p, const char* kind, cudaStream_t stream, const Run& run,
            const Run& rehearse);

// As a product of few rows, if it is one.
std::optional<kernels::FewRowsGemm> rows_of(const Rows& a, const Matrix& w, bool settled);

// The modulated layer norm of the stream, as the next products want it, of which this weight is one.
Rows modulated_norm(const char* op, const at::Tensor& x, const Modulation& m, const at::Tensor& weight,
                    Dtype dtype, Queue& queue);

Rows quantized(const char* op, const at::Tensor& x, cudaStream_t stream);  // to e4m3

}  // namespace pom::ops::cuda::sampling
