// Private to the room: what the blocks of a clip have left for those to come, in one evaluation: of mixers
// the sums over tokens (pom/ops/block/past_sums.h), one running sum or those of as many of the last blocks as
// a window sees and there were; of attention its keys and values. L layers that see blocks before their own,
// R sequences, W sums kept, kD features.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/models/config.h"
#include "pom/nn/clip_attention.h"

namespace pom::models {

class ClipPast {
 public:
  ClipPast() = default;
  // Of nothing yet. Sums are of the stream's dtype, keys and values of that of the products.
  ClipPast(const NetworkConfig& config, std::int64_t rows, at::TensorOptions stream);

  bool defined() const { return sums.defined() || !caches.empty(); }
  // The same with so many sums for each layer, zeros before them; it has at most as many.
  ClipPast padded(std::int64_t kept) const;
  // One for the blocks that come: room for as many sums, or a copy of the caches to append to.
  ClipPast next() const;

  at::Tensor sums;                        // (L, R, W, kD), W of those that there were, oldest first
  std::vector<nn::KeyValueCache> caches;  // of every layer of a network with attention
};

// The layers that see blocks before their own, and so have a past. Each has its place among them.
std::vector<std::int64_t> layers_with_past(const NetworkConfig& config);

// As Denoiser::state() has them, of evaluation i after so many blocks of `tokens` each; and back.
void add_state(std::map<std::string, at::Tensor>& all, std::int64_t i, const ClipPast& past,
               const NetworkConfig& config, std::int64_t blocks, std::int64_t tokens);
ClipPast past_of_state(const std::map<std::string, at::Tensor>& all, std::int64_t i,
                       const NetworkConfig& config, std::int64_t rows, std::int64_t blocks,
                       std::int64_t tokens, at::TensorOptions stream, at::ScalarType dtype);
// The tensor of a state, or an error that says which is missing.
const at::Tensor& state_tensor(const std::map<std::string, at::Tensor>& all, const std::string& name);

}  // namespace pom::models
