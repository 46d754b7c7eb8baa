// Private to CUDA builds: a table of copies as launches take it.
#pragma once

#include "pom/kernels/portable/weight_copies.h"
#include "pom/ops/cuda/weight_copies.h"

namespace pom::ops::cuda {

kernels::WeightParts weight_parts(const WeightTable& table);

}  // namespace pom::ops::cuda
