// Which examples of a batch a rank computes, and in which parts. B examples, P parts, N ranks.
//
// Gradients of parts are added up in a binary tree over the parts: ((g0 + g1) + (g2 + g3)) + … Where the
// number of parts does not depend on that of ranks, and each rank has whole subtrees, the sum has the same
// bits on any number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pom/train/recipe.h"

namespace pom::train {

struct Division {
  std::int64_t parts = 1, size = 0;      // P, and the examples of each
  std::vector<std::int64_t> mine = {0};  // the parts of this rank, in the order they are computed in
  bool exact = false;                    // the bits of any other number of ranks that divides `parts`
  std::string why_not = {};              // where that was asked for and cannot be

  std::vector<std::int64_t> rows() const;  // of the batch, which this rank reads; none: all
};

// `exact`: as on CPUs, or asked for. With interleaved parts, those that are computed at the same time are one
// subtree; else those of a rank are.
Division divide(const BatchConfig& batch, const ParallelConfig& parallel, bool exact, int rank, int ranks);

// What happens to sums of gradients after the i-th of `count` parts: `pops` times the sum before is added,
// then what there is may be put aside (`push`) for a sum that begins with the next part. The last part's pops
// come when its gradients are complete.
struct TreeStep {
  int pops = 0;
  bool push = false;
};
std::vector<TreeStep> tree_steps(std::int64_t count);
// How many sums are put aside at the most.
int tree_depth(const std::vector<TreeStep>& steps);

}  // namespace pom::train
