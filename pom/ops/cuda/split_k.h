// Private to CUDA builds: the device memory of GEMMs whose K is split (kernels::GemmSplits).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/kernels/sm90/gemm/gemm.h"

namespace pom::ops::cuda {

// What follows a GEMM whose K may be split: its results are stored, or added to what there is.
enum class Follows { store, add };

// Sets gemm.splits by its sizes alone, with counters that are this stream's, or this graph's while one is
// captured, and with the memory that is returned: it has to live until the GEMM has been launched. `like` is
// a tensor of the device, which is current with this stream.
std::vector<at::Tensor> split_k(kernels::Gemm& gemm, Follows follows, const at::Tensor& like,
                                cudaStream_t stream);

}  // namespace pom::ops::cuda
