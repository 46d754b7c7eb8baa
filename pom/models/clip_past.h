// Private to the room: what the blocks of a clip have left for those to come, in one evaluation: of mixers
// the sums over tokens (pom/ops/block/past_sums.h), one running sum or those of as many of the last blocks as
// a window sees and there were. Of attention it is keys and values (pom/nn/key_values.h), which all
// evaluations have in one place. L layers that see blocks before their own, R sequences, W sums kept, kD
// features.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/models/config.h"

namespace pom::models {

class ClipPast {
 public:
  ClipPast() = default;
  // Of nothing yet, in the stream's dtype.
  ClipPast(const NetworkConfig& config, std::int64_t rows, at::TensorOptions stream);

  // The same with so many sums for each layer, zeros before them; it has at most as many.
  ClipPast padded(std::int64_t kept) const;
  ClipPast next() const;  // room for as many sums

  at::Tensor sums;  // (L, R, W, kD), W of those that there were, oldest first; undefined with attention
};

// The layers that see blocks before their own, and so have a past. Each has its place among them.
std::vector<std::int64_t> layers_with_past(const NetworkConfig& config);

// Blocks whose sums, or keys and values, are kept apart after so many.
std::int64_t kept_after(const NetworkConfig& config, std::int64_t blocks);

// As Denoiser::state() has them, of evaluation i after so many blocks of `tokens` each; and back.
void add_state(std::map<std::string, at::Tensor>& all, std::int64_t i, const ClipPast& past,
               const NetworkConfig& config, std::int64_t blocks, std::int64_t tokens);
ClipPast past_of_state(const std::map<std::string, at::Tensor>& all, std::int64_t i,
                       const NetworkConfig& config, std::int64_t rows, std::int64_t blocks,
                       std::int64_t tokens, at::TensorOptions stream);
// Keys and values (L, R, tokens, d).
struct StoredKeys {
  at::Tensor keys, values;
};
void add_state(std::map<std::string, at::Tensor>& all, std::int64_t i, const StoredKeys& keys);
StoredKeys keys_of_state(const std::map<std::string, at::Tensor>& all, std::int64_t i,
                         const NetworkConfig& config, std::int64_t rows, std::int64_t blocks,
                         std::int64_t tokens, at::ScalarType dtype);
// The tensor of a state, or an error that says which is missing.
const at::Tensor& state_tensor(const std::map<std::string, at::Tensor>& all, const std::string& name);

}  // namespace pom::models
