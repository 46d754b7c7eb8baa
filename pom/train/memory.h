// What one of N ranks keeps in memory while it trains, by counting. n numbers are learned.
#pragma once

#include <cstdint>

#include "pom/train/workload.h"

namespace pom::train {

struct RankMemory {
  std::int64_t weights = 0, gradients = 0, moments = 0, average = 0;  // masters: fp32, or fp64
  std::int64_t aside = 0;        // sums of gradients of earlier parts of a batch
  std::int64_t buckets = 0;      // on their way
  std::int64_t copies = 0;       // of the weights in bf16
  std::int64_t activations = 0;  // of one part of the batch
  std::int64_t workspaces = 0;   // of a GPU's libraries

  std::int64_t state() const { return weights + gradients + moments + average; }
  std::int64_t total() const { return state() + aside + buckets + copies + activations + workspaces; }
};

// `fused`: through the fused branches of Hopper's kernels; `cpu` as in rank_work().
RankMemory rank_memory(const Workload& work, Shard shard, std::int64_t ranks, bool cpu, bool fused);

// Numbers of a bucket in which gradients travel, and how many there are.
struct BucketCount {
  std::int64_t size = 0, count = 0;
};
BucketCount buckets_of(std::int64_t parameters, std::int64_t ranks);

}  // namespace pom::train
