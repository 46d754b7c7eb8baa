#include "pom/train/division.h"

#include <algorithm>
#include <numeric>

#include "pom/base/error.h"
#include "pom/train/refusal.h"

namespace pom::train {
namespace {

constexpr std::int64_t exact_parts = 4;  // at least, where they divide the batch: for up to so many ranks

bool power_of_two(std::int64_t n) {
  return (n & (n - 1)) == 0;
}

// Whether what a rank has, or with interleaved parts what all have at a time, is a subtree.
bool aligned(std::int64_t parts, std::int64_t ranks, bool interleaved) {
  return power_of_two(ranks) && parts % ranks == 0 && (!interleaved || power_of_two(parts));
}

std::int64_t fixed_parts(const BatchConfig& batch) {
  std::int64_t parts = batch.accumulate;
  while (parts < exact_parts && batch.size % (2 * parts) == 0) parts *= 2;
  return parts;
}

// The tree over parts [l, r): of at most two, gradients add up where they are.
void walk_tree(std::int64_t l, std::int64_t r, std::vector<TreeStep>& steps) {
  if (r - l <= 2) return;
  const std::int64_t middle = l + (r - l) / 2;
  walk_tree(l, middle, steps);
  steps[static_cast<std::size_t>(middle - 1)].push = true;
  walk_tree(middle, r, steps);
  ++steps[static_cast<std::size_t>(r - 1)].pops;
}

}  // namespace

std::vector<std::int64_t> Division::rows() const {
  if (std::ssize(mine) == parts) return {};
  std::vector<std::int64_t> all;
  for (const std::int64_t part : mine)
    for (std::int64_t i = 0; i < size; ++i) all.push_back(part * size + i);
  return all;
}

Division divide(const BatchConfig& batch, const ParallelConfig& parallel, bool exact, int rank, int ranks) {
  refuse_unless(batch.size % ranks == 0, "train: batch.size: expected a multiple of the ", ranks,
                " ranks that share it, got ", batch.size);
  Division d;
  exact = exact && parallel.gradients == "fp32";
  d.parts = exact ? fixed_parts(batch) : batch.accumulate;
  const bool interleaved = parallel.divides_gradients();
  if (d.parts % ranks != 0 || (exact && !aligned(d.parts, ranks, interleaved))) {
    if (exact && ranks > 1)
      d.why_not =
          detail::concat("a batch of ", batch.size, " in ", d.parts, " parts on ", ranks,
                         " ranks does not give the bits of one rank: that takes 1, 2 or 4 ranks, and a "
                         "batch.size or batch.accumulate that they divide");
    exact = false;
    d.parts = (std::max<std::int64_t>(d.parts, ranks) + ranks - 1) / ranks * ranks;
    while (batch.size % d.parts != 0) d.parts += ranks;
  }
  d.exact = exact;
  d.size = batch.size / d.parts;
  d.mine.clear();
  const std::int64_t own = d.parts / ranks;
  for (std::int64_t i = 0; i < own; ++i) d.mine.push_back(interleaved ? i * ranks + rank : rank * own + i);
  return d;
}

std::vector<TreeStep> tree_steps(std::int64_t count) {
  std::vector<TreeStep> steps(static_cast<std::size_t>(count));
  walk_tree(0, count, steps);
  return steps;
}

int tree_depth(const std::vector<TreeStep>& steps) {
  int depth = 0, deepest = 0;
  for (const TreeStep& step : steps) {
    depth -= step.pops;
    deepest = std::max(deepest, depth += step.push);
  }
  return deepest;
}

}  // namespace pom::train
