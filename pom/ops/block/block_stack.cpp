#include "pom/ops/block/block_stack.h"

#include "pom/ops/cuda/block.h"

namespace pom::ops {

std::unique_ptr<BlockStack> BlockStack::make(const at::Tensor& x, std::span<const StackedBlock> blocks,
                                             std::int64_t order, bool fp8) {
  return cuda::block_stack(x, blocks, order, fp8);
}

}  // namespace pom::ops
