// What the blocks of sequences see of each other while they are sampled: each itself and those before it, of
// which sums over tokens are kept, one running sum or those of the last W blocks, oldest first (zeros where
// there have been fewer). What is written has the shape of what is read, so that a GPU's graph of one block
// can be that of all. R sequences, n blocks of each at once, K tokens of a block, kD features.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pom::ops {

struct PastSums {
  std::int64_t window = 0;  // blocks that are seen, W; 0: all, of which one sum is kept
  at::Tensor past, left;    // (R, W or 1, kD): read, and written for the blocks to come; where they are
                            // undefined a block sees itself alone. No memory of one is the other's
  at::Tensor tokens_seen;   // (n): 1e-7 + of how many tokens a block sees the sums

  std::int64_t blocks() const { return tokens_seen.size(0); }
};

// Sums over the tokens of each block (R n, kD) -> the means that its tokens see, of the same shape; `left` is
// written. On the CPU in order, block after block.
at::Tensor seen_means(const PastSums& past, const at::Tensor& sums);

// `rows` blocks of so many features, in this dtype. `op` begins the messages.
void check_past(const char* op, const PastSums& past, std::int64_t rows, std::int64_t features,
                const at::Tensor& like);

}  // namespace pom::ops
