// Tokens of a sequence dealt out to the ranks of a group, in order, and what they see of each other: blocks
// of tokens that a border between ranks may cut. n tokens in all, N ranks. No tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "pom/ops/mask.h"
#include "pom/parallel/ranks.h"
#include "pom/parallel/share.h"

namespace pom::ops {

class SplitTokens {
 public:
  SplitTokens() = default;  // not split: one rank has everything
  // `counts[r]` tokens, at least one, for each rank of the group.
  SplitTokens(parallel::Ranks ranks, const std::vector<std::int64_t>& counts, bool exact = true);

  const parallel::Ranks& ranks() const { return ranks_; }
  bool split() const { return !ranks_.alone(); }
  std::int64_t total() const { return starts_.back(); }
  parallel::Share share(int rank) const { return {starts_[rank], starts_[rank + 1] - starts_[rank]}; }
  parallel::Share mine() const { return share(ranks_.rank()); }
  // Sums over ranks are taken in the order of ranks, so that their bits depend on the shares alone. Else
  // where one sum will do it is the group's own, which moves less between many ranks and rounds as it likes.
  bool exact() const { return exact_; }

 private:
  parallel::Ranks ranks_;
  std::vector<std::int64_t> starts_{0};  // N + 1
  bool exact_ = true;
};

// The rows that a rank keeps sums of: one for each block of the mask that it has tokens of. Without a causal
// mask the whole sequence is one block.
class SplitBlocks {
 public:
  SplitBlocks(const SplitTokens& split, std::int64_t block, std::int64_t window);

  std::int64_t block() const { return block_; }
  std::int64_t window() const { return window_; }  // 0 where everything before is seen
  bool one() const { return one_; }                // all see all
  bool cut() const { return cut_; }                // some border between ranks is within a block
  int ranks() const { return static_cast<int>(first_.size()); }
  int rank() const { return rank_; }
  std::int64_t first(int rank) const { return first_[rank]; }  // number of its first block
  std::int64_t last(int rank) const { return last_[rank]; }
  std::int64_t rows() const { return last_[rank_] - first_[rank_] + 1; }
  std::int64_t most_rows() const;  // of any rank

  const std::vector<std::int64_t>& lengths() const { return lengths_; }  // of this rank's rows, in tokens
  const std::vector<std::int64_t>& seen() const { return seen_; }        // tokens that a query of a row sees
  std::int64_t lead() const { return lead_; }  // tokens of the first row's block that earlier ranks have

 private:
  std::int64_t block_, window_, lead_;
  bool one_, cut_ = false;
  int rank_;
  std::vector<std::int64_t> first_, last_, lengths_, seen_;
};

}  // namespace pom::ops
