// How long a rank computes for a step, from measured rates: the products of the network, what is done
// beside them, and the update of the weights.
//
// A product of R rows takes flops/rate + bytes/bandwidth + a launch. Beside the products a block takes
// so many passes over what it keeps for the backward pass, more for narrow rows, and a time of its own for
// its weights. The constants were fitted to `pom bench figure1` on an H200 (see measured_h200 in the source).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pom/train/workload.h"

namespace pom::train {

struct Processor {
  std::string name;
  double flops = 0, flops_fp32 = 0;       // a second that products reach, by the precision of their factors
  double bytes_per_second = 0;            // of its memory
  double memory = 0;                      // bytes that a process can have
  double launch = 0;                      // seconds between two products
  double reserved = 0;                    // bytes of the process beside what is counted
  bool fused = true;                      // has the fused branches of Hopper
  bool overlaps = true;                   // sends while it computes
  std::vector<std::string> sources = {};  // of the numbers, in words

  // Measured here: seconds of a step with no blocks and of each block more, of the whole batch on one rank.
  // Where there are any, nothing else of the above counts for the time of forward and backward pass.
  double step_base = 0, step_block = 0;
  std::int64_t cores = 0, threads = 1;  // of a machine that its ranks share; 0: each has its own
  bool measured() const { return step_base + step_block > 0; }
};

// "h200", "h100", "a100"; an unknown name is an error that lists them.
Processor processor_named(std::string_view name);
std::vector<std::string> processor_names();

struct ComputeTime {
  double forward = 0, backward = 0;  // of all parts of a batch
  double update = 0;                 // norm, clip, optimizer, average
  double products = 0;               // of forward and backward, those of the matrix products
  double flops = 0;                  // of the products

  double total() const { return forward + backward + update; }
};
// Of one of `ranks`, which updates its share of the weights where they are divided.
ComputeTime compute_time(const Workload& work, const RankWork& mine, const Processor& processor, Shard shard,
                         std::int64_t ranks);

// Bytes of a number that the optimizer reads and writes in an update.
double update_bytes(std::int64_t average_every);

}  // namespace pom::train
