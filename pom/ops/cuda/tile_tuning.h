// Private to CUDA builds: the tile of a product, by measurement.
#pragma once

#include <functional>

#include "pom/kernels/sm90/gemm/gemm.h"

namespace pom::ops::cuda {

// Sets product.tile to the fastest of those that fit, timed on the stream the first time that a product of
// this kind, these sizes and splits comes, and remembered. A kind is what has kernels of its own. `run` must
// do no harm when it runs several times. While a graph is captured nothing is timed: what is not known then
// is left to the kernels' own choice.
void tune(kernels::Gemm& gemm, const char* kind, cudaStream_t stream,
          const std::function<cudaError_t(const kernels::Gemm&)>& run);

}  // namespace pom::ops::cuda
