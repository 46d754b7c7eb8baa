#include "pom/models/sequence.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include "pom/base/error.h"

namespace pom::models {
namespace {

// Rows or frames that go together.
std::int64_t unit_of(const NetworkConfig& config) {
  return config.video() ? config.patch_time : config.patch;
}

std::vector<std::int64_t> sequence_counts(const NetworkConfig& config, const SequenceSplit& split) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < split.ranks.size(); ++r)
    counts.push_back(sequence_share(config, split.whole, split.ranks.size(), r).count);
  return counts;
}

}  // namespace

parallel::Share sequence_share(const NetworkConfig& config, std::int64_t whole, int ranks, int rank) {
  const std::int64_t unit = unit_of(config), units = whole / unit;
  const char* const things = config.video() ? "blocks of frames" : "rows of patches";
  check(!config.attention(), "sequence: mixer: expected pom, whose ranks exchange sums, to split ",
        config.video() ? "a clip" : "a picture", " over ", ranks, " ranks, got attention, which sees every ",
        "token; give each rank whole examples instead");
  check(whole >= unit && whole % unit == 0, "sequence: whole: expected whole ", things, " (multiples of ",
        unit, "), got ", whole);
  check(units >= ranks, "sequence: ranks: expected at most ", units, ", one for each of the ", things,
        ", got ", ranks);
  return parallel::share_of(whole, ranks, rank, unit);
}

parallel::Share sequence_share(const NetworkConfig& config, const SequenceSplit& split) {
  return sequence_share(config, split.whole, split.ranks.size(), split.ranks.rank());
}

at::Tensor sequence_part(const at::Tensor& whole, const NetworkConfig& config, const SequenceSplit& split) {
  if (!split.split()) return whole;
  check(whole.dim() >= 3 && whole.size(2) == split.whole, "sequence_part: whole: expected ", split.whole,
        " along dimension 2, got shape ", whole.sizes());
  const parallel::Share mine = sequence_share(config, split);
  return whole.narrow(2, mine.first, mine.count);
}

// Parts of the length of the longest are gathered, so that one call serves unequal ones too.
at::Tensor sequence_whole(const at::Tensor& part, const NetworkConfig& config, const SequenceSplit& split) {
  if (!split.split()) return part;
  const std::vector<std::int64_t> counts = sequence_counts(config, split);
  const std::int64_t most = *std::max_element(counts.begin(), counts.end());
  const at::Tensor moved = part.detach().movedim(2, 0);
  check(moved.size(0) == counts[split.ranks.rank()], "sequence_whole: part: expected ",
        counts[split.ranks.rank()], " along dimension 2, got shape ", part.sizes());
  std::vector<std::int64_t> pad(2 * moved.dim(), 0);
  pad.back() = most - moved.size(0);
  const at::Tensor all = split.ranks.gather(at::constant_pad_nd(moved, pad).contiguous());
  std::vector<at::Tensor> parts;
  for (int r = 0; r < split.ranks.size(); ++r) parts.push_back(all[r].narrow(0, 0, counts[r]));
  return at::cat(parts, 0).movedim(0, 2).contiguous();
}

ops::SplitTokens split_tokens(std::string_view where, const at::Tensor& x, const NetworkConfig& config,
                              const SequenceSplit& split) {
  if (!split.split()) return {};
  std::vector<std::int64_t> counts = sequence_counts(config, split);
  check(x.size(2) == counts[split.ranks.rank()], where, ": x: expected the ", counts[split.ranks.rank()],
        config.video() ? " frames" : " rows", " of rank ", split.ranks.rank(), " of ", split.ranks.size(),
        " (of ", split.whole, " in all), got shape ", x.sizes());
  const std::int64_t across = config.video() ? config.tokens(x.size(3), x.size(4)) : x.size(3) / config.patch;
  for (std::int64_t& count : counts) count = count / unit_of(config) * across;
  return {split.ranks, counts, split.exact};
}

}  // namespace pom::models
