// In which order a training sees the examples: a function of seed and place alone, so that the state of a
// training is one number.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace pom::data {

// The example at a place: its index and the epoch it lies in.
struct Visit {
  std::int64_t index, epoch;
};

// One permutation of all examples for each epoch; of an endless data set (size 0) example p at place p.
Visit example_at(std::int64_t place, std::int64_t size, std::uint64_t seed);

// The same of a data set whose examples lie together in shards: an epoch is a permutation of the shards, of
// which so many at a time are mixed, each of their examples anywhere among them. An epoch so reads every
// shard in one stretch and no more than `together` at once. Without shards it is example_at.
class Order {
 public:
  static constexpr std::int64_t shards_together = 16;

  Order(std::int64_t size, std::vector<std::int64_t> shards, std::uint64_t seed,
        std::int64_t together = shards_together);
  Visit at(std::int64_t place) const;

 private:
  struct Epoch;
  std::shared_ptr<const Epoch> epoch(std::int64_t number) const;

  std::int64_t size_, together_;
  std::uint64_t seed_;
  std::vector<std::int64_t> counts_, first_;  // of each shard: its examples, and the index of the first
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Epoch>> recent_;  // workers stand in two at most, at the border
};

}  // namespace pom::data
