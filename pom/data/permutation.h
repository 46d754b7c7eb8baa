// A shuffled order that nobody has to store: place i of a permutation of N numbers, found alone.
#pragma once

#include <cstdint>

#include "pom/base/noise.h"

namespace pom::data {

// A Feistel network over the next power of four, walked on until it falls below N (cycle walking). One
// permutation for each key and stream.
class Permutation {
 public:
  // 1 <= size <= 2^62, 0 <= stream < 2^27.
  Permutation(const NoiseKey& key, std::int64_t size, std::int64_t stream = 0);
  std::int64_t at(std::int64_t place) const;

 private:
  std::uint64_t shuffled(std::uint64_t value) const;

  NoiseKey key_;
  std::int64_t stream_;
  std::uint64_t size_;
  int half_bits_;
};

}  // namespace pom::data
