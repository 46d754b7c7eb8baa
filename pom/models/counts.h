// What a network costs, counted without making it: parameters, multiply-adds, memory. Of clips, a picture is
// one block of frames that goes on from the state of those before it, and its text was read before.
#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "pom/models/config.h"

namespace pom::models {

std::int64_t count_parameters(const NetworkConfig& config);

// Multiply-adds of one evaluation for one picture whose latent is height x width: the matrix products, and
// what grows with the tokens beside them (the mixer's sums, attention's two products); the largest number
// where there are more.
std::int64_t count_macs(const NetworkConfig& config, std::int64_t height, std::int64_t width);

struct SamplingMemory {
  std::int64_t weights = 0;      // bytes once
  std::int64_t fixed = 0;        // bytes once, for working space of the threads
  std::int64_t per_picture = 0;  // bytes for each picture of a batch (both halves where guided)
};
SamplingMemory sampling_memory(const NetworkConfig& config, std::int64_t height, std::int64_t width,
                               at::ScalarType dtype, bool guided, std::int64_t steps);

// Bytes of one clip of `blocks` blocks that is made at once, by the parallel form of the network, and told a
// text of `words` tokens at each block; 2^60 where there are more.
std::int64_t whole_clip_memory(const NetworkConfig& config, std::int64_t height, std::int64_t width,
                               std::int64_t blocks, std::int64_t words, at::ScalarType dtype, bool guided);

// What the tokens of one picture take in a training step, in bytes; where a picture's blocks see each other
// in the fused branches of Hopper's kernels (`fused`), a norm's result is computed again and not kept.
struct TrainingActivations {
  std::int64_t kept = 0;     // of all blocks, for the backward pass
  std::int64_t input = 0;    // of one block: what checkpointing keeps of it
  std::int64_t working = 0;  // of the block whose gradients are under way, at the most
};
TrainingActivations training_activations(const NetworkConfig& config, std::int64_t height, std::int64_t width,
                                         at::ScalarType dtype, bool fused);

// Numbers in the matrices of one block: those that tokens are multiplied by, of which bf16 training has a
// copy, and all of them with those of the conditions.
struct BlockMatrices {
  std::int64_t products = 0, all = 0;
};
BlockMatrices block_matrices(const NetworkConfig& config);

// Bytes for a training step with AdamW and EMA: masters, gradients, two moments, EMA (fp32) and activations
// in `dtype` for `batch` pictures.
std::int64_t training_memory(const NetworkConfig& config, std::int64_t height, std::int64_t width,
                             at::ScalarType dtype, std::int64_t batch);

}  // namespace pom::models
