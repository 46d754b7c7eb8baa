#include "pom/data/order.h"

#include <algorithm>
#include <numeric>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/data/permutation.h"

namespace pom::data {
namespace {

NoiseKey order_key(std::uint64_t seed, std::int64_t epoch) {
  return {seed, noise_for::data_order, static_cast<std::uint32_t>(epoch)};
}

}  // namespace

Visit example_at(std::int64_t place, std::int64_t size, std::uint64_t seed) {
  check(place >= 0, "example_at: place: expected at least 0, got ", place);
  if (size == 0) return {place, 0};
  const std::int64_t epoch = place / size;
  return {Permutation(order_key(seed, epoch), size).at(place % size), epoch};
}

// The shards of an epoch in their order, and how many examples come before each.
struct Order::Epoch {
  std::int64_t number;
  std::vector<std::int64_t> shards, before;
};

Order::Order(std::int64_t size, std::vector<std::int64_t> shards, std::uint64_t seed, std::int64_t together)
    : size_(size), together_(together), seed_(seed), counts_(std::move(shards)), first_(counts_.size()) {
  check(together >= 1, "order: shards together: expected at least 1, got ", together);
  std::exclusive_scan(counts_.begin(), counts_.end(), first_.begin(), std::int64_t{0});
  const std::int64_t sum = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
  check(counts_.empty() || sum == size, "order: shards: expected ", size, " examples in all, got ", sum);
}

std::shared_ptr<const Order::Epoch> Order::epoch(std::int64_t number) const {
  const std::lock_guard lock(mutex_);
  for (const auto& known : recent_)
    if (known->number == number) return known;
  auto made = std::make_shared<Epoch>(Epoch{number, {}, {0}});
  const Permutation order(order_key(seed_, number), std::ssize(counts_));
  for (std::int64_t i = 0; i < std::ssize(counts_); ++i) {
    made->shards.push_back(order.at(i));
    made->before.push_back(made->before.back() + counts_[static_cast<std::size_t>(made->shards.back())]);
  }
  if (recent_.size() == 4) recent_.erase(recent_.begin());
  recent_.push_back(made);
  return made;
}

Visit Order::at(std::int64_t place) const {
  if (counts_.empty() || size_ == 0) return example_at(place, size_, seed_);
  check(place >= 0, "order: place: expected at least 0, got ", place);
  const auto now = epoch(place / size_);
  const std::int64_t within = place % size_, shards = std::ssize(counts_);
  const auto shard_of =
      [&](std::int64_t example) {  // its place in the epoch's order; empty ones are passed over
        return std::ranges::upper_bound(now->before, example) - now->before.begin() - 1;
      };
  // The shards that are mixed with the one at this place, the examples they hold, and one of those.
  const std::int64_t group = shard_of(within) / together_;
  const auto begin = static_cast<std::size_t>(group * together_);
  const auto end = static_cast<std::size_t>(std::min(shards, (group + 1) * together_));
  const std::int64_t from = now->before[begin], count = now->before[end] - from;
  const Permutation mix(order_key(seed_, now->number), count, group + 1);  // stream 0 is that of the shards
  const std::int64_t chosen = from + mix.at(within - from);
  const auto slot = static_cast<std::size_t>(shard_of(chosen));
  const auto shard = static_cast<std::size_t>(now->shards[slot]);
  return {first_[shard] + chosen - now->before[slot], now->number};
}

}  // namespace pom::data
