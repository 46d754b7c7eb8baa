#include "pom/ops/split_tokens.h"

#include <algorithm>

#include "pom/base/error.h"

namespace pom::ops {

SplitTokens::SplitTokens(parallel::Ranks ranks, const std::vector<std::int64_t>& counts, bool exact)
    : ranks_(std::move(ranks)), exact_(exact) {
  check(static_cast<int>(counts.size()) == ranks_.size(), "split tokens: counts: expected one for each of ",
        ranks_.size(), " ranks, got ", counts.size());
  for (std::size_t r = 0; r < counts.size(); ++r) {
    check(counts[r] >= 1, "split tokens: counts: expected at least one token for rank ", r, ", got ",
          counts[r]);
    starts_.push_back(starts_.back() + counts[r]);
  }
}

SplitBlocks::SplitBlocks(const SplitTokens& split, std::int64_t block, std::int64_t window)
    : block_(block == 0 ? split.total() : std::min(block, split.total())),
      window_(window),
      one_(block_ == split.total()),
      rank_(split.ranks().rank()) {
  const std::int64_t n = split.total(), blocks = (n + block_ - 1) / block_;
  if (window_ >= blocks) window_ = 0;
  for (int r = 0; r < split.ranks().size(); ++r) {
    const parallel::Share share = split.share(r);
    first_.push_back(share.first / block_);
    last_.push_back((share.end() - 1) / block_);
    cut_ = cut_ || share.first % block_ != 0;
  }
  const parallel::Share mine = split.mine();
  lead_ = mine.first % block_;
  for (std::int64_t b = first_[rank_]; b <= last_[rank_]; ++b) {
    const std::int64_t begin = b * block_, end = std::min(begin + block_, n);
    lengths_.push_back(std::min(end, mine.end()) - std::max(begin, mine.first));
    seen_.push_back(end - (window_ > 0 ? std::max<std::int64_t>(0, b - window_ + 1) * block_ : 0));
  }
}

std::int64_t SplitBlocks::most_rows() const {
  std::int64_t most = 0;
  for (int r = 0; r < ranks(); ++r) most = std::max(most, last(r) - first(r) + 1);
  return most;
}

}  // namespace pom::ops
