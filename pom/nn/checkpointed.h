// A block whose activations are not kept: the backward pass computes it again.
#pragma once

#include "pom/nn/modulated_block.h"

namespace pom::nn {

// block->forward(x, c, split), saving x and c only. Under autocast both passes see the same state of it.
// Gradients are those of the plain call, bit for bit; of second order they are refused.
at::Tensor checkpointed(std::shared_ptr<ModulatedBlockImpl> block, const at::Tensor& x, const at::Tensor& c,
                        const ops::SplitTokens& split = {});

}  // namespace pom::nn
