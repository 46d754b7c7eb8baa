#include "pom/data/permutation.h"

#include <algorithm>
#include <bit>

#include "pom/base/error.h"

namespace pom::data {
namespace {

constexpr int rounds = 6;
constexpr int least_half_bits = 3;  // of fewer, six rounds reach only some of the permutations

}  // namespace

Permutation::Permutation(const NoiseKey& key, std::int64_t size, std::int64_t stream)
    : key_(key), stream_(stream << 35), size_(static_cast<std::uint64_t>(size)) {
  check(size >= 1 && size <= (std::int64_t{1} << 62), "permutation: size: expected 1 to 2^62, got ", size);
  check(stream >= 0 && stream < (1 << 27), "permutation: stream: expected 0 to 2^27, got ", stream);
  half_bits_ = std::max(least_half_bits, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
}

std::uint64_t Permutation::shuffled(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_, right = value & mask;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::uint64_t word = bits_at(key_, stream_ | round << 32 | static_cast<std::int64_t>(right));
    const std::uint64_t mixed = left ^ (word & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::int64_t Permutation::at(std::int64_t place) const {
  check(place >= 0 && static_cast<std::uint64_t>(place) < size_, "permutation: place: expected 0 to ",
        size_ - 1, ", got ", place);
  auto value = static_cast<std::uint64_t>(place);
  do value = shuffled(value);
  while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace pom::data
