// What attention keeps of the blocks of sequences that are made one after another: their keys and values, in
// memory of a fixed capacity that is written in place. It is taken once where it is known how many blocks
// will come, or how many are seen; else it doubles. All sequences are as far. L layers, S sequences, K tokens
// of a block, d width, W blocks of a window.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/ops/block/span_attention.h"

namespace pom::nn {

class KeyValues {
 public:
  struct Sizes {
    std::int64_t layers = 0, sequences = 0, tokens = 0, width = 0;
    std::int64_t window = 0;  // blocks that are seen, W; 0: all
    std::int64_t blocks = 0;  // that will come in all; 0: not known
    bool operator==(const Sizes&) const = default;
  };
  KeyValues(const Sizes& sizes, at::TensorOptions options) : sizes_(sizes), options_(options) {}
  const Sizes& sizes() const { return sizes_; }

  // For n more blocks behind those that are there. True where it needed other memory: every address changes.
  bool make_room(std::int64_t n);

  // n blocks of sequences [first, first + R), k and v (R, n K, d), behind those that are there. They count
  // from advance() on; until then they may be written again.
  void write(std::int64_t layer, std::int64_t first, const at::Tensor& k, const at::Tensor& v);
  // What block i of those behind sees, itself included: (R, tokens, d), oldest first.
  at::Tensor keys(std::int64_t layer, std::int64_t first, std::int64_t R, std::int64_t i) const;
  at::Tensor values(std::int64_t layer, std::int64_t first, std::int64_t R, std::int64_t i) const;

  void advance(std::int64_t n) { end_ += n; }
  void clear() { end_ = 0; }

  // Of the last n blocks that count, (L, R, n K, d) each.
  at::Tensor last_keys(std::int64_t first, std::int64_t R, std::int64_t n) const;
  at::Tensor last_values(std::int64_t first, std::int64_t R, std::int64_t n) const;

  // The same for a graph: where the next n blocks of the first R sequences lie and what they see, as numbers
  // on the device, which are read when the graph runs.
  struct Places {
    at::Tensor written;  // (R n K) int64, rows
    ops::Spans seen;     // of R n sequences of K queries
  };
  Places places(std::int64_t R, std::int64_t n) const;
  // Into `out`, of the same shapes: those of as many sequences from `first` on.
  void shift(const Places& places, std::int64_t first, Places& out) const;
  // k, v (R n, K, d) to where they lie, and what queries (R n, K, d) of so many heads find there.
  void write(std::int64_t layer, const Places& places, const at::Tensor& k, const at::Tensor& v);
  at::Tensor attend(std::int64_t layer, const Places& places, const at::Tensor& q, std::int64_t heads) const;

  std::int64_t room() const { return keys_.empty() ? 0 : keys_.front().size(1); }  // tokens of a sequence

 private:
  std::int64_t first_seen(std::int64_t i) const;  // the block that the one i behind the end sees first
  at::Tensor seen(const at::Tensor& memory, std::int64_t first, std::int64_t R, std::int64_t i) const;
  at::Tensor last(const std::vector<at::Tensor>& memories, std::int64_t first, std::int64_t R,
                  std::int64_t n) const;
  at::Tensor moved(const at::Tensor& old, std::int64_t kept, std::int64_t room) const;
  std::int64_t wanted(std::int64_t least) const;

  Sizes sizes_;
  at::TensorOptions options_;
  std::int64_t end_ = 0;                   // blocks that count, from the beginning of the memory
  std::vector<at::Tensor> keys_, values_;  // of each layer (S, room, d)
};

}  // namespace pom::nn
