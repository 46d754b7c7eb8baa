// What blocks see of each other where ranks have parts of a sequence: sums over the blocks up to each one
// (of a window of them, or of all of the sequence), from sums of the parts. One collective call, the same on
// all ranks; none where no rank needs another.
//
// B sequences, R rows (blocks that this rank has tokens of), c features. Numbers that a rank hands in, for
// each sequence and feature: 1 where all see all or the ranks' borders are those of blocks, 2 where a border
// cuts a block; with a window of W blocks W - 1, and where a border cuts a block W + 1.
#pragma once

#include <ATen/core/Tensor.h>

#include "pom/ops/split_tokens.h"

namespace pom::ops {

// sums (B, R, c) -> (B, R, c), row by row the sum over all ranks of what queries of that block see.
// Differentiable to any order: the gradient is the same in the other direction.
at::Tensor reach(const at::Tensor& sums, const SplitTokens& split, const SplitBlocks& blocks);

// Without autograd; `back` for the gradient: row by row the sum of what the blocks that see it hand back.
at::Tensor reach_of(const at::Tensor& sums, const SplitTokens& split, const SplitBlocks& blocks, bool back);

}  // namespace pom::ops
