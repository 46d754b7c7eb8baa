#include "pom/eval/numpy_random.h"

#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "pom/base/error.h"

namespace pom::eval {

// As many bits as the largest has, drawn again where they are more.
std::uint32_t NumpyRandom::at_most(std::uint32_t largest) {
  if (largest == 0) return 0;
  const std::uint32_t mask = std::numeric_limits<std::uint32_t>::max() >> std::countl_zero(largest);
  std::uint32_t drawn = 0;
  do {
    drawn = static_cast<std::uint32_t>(engine_()) & mask;
  } while (drawn > largest);
  return drawn;
}

std::vector<std::int64_t> NumpyRandom::permutation(std::int64_t count) {
  check(count >= 0 && count <= std::numeric_limits<std::int32_t>::max(),
        "NumpyRandom: permutation: expected 0 to 2147483647 things, got ", count);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = count - 1; i > 0; --i)
    std::swap(order[static_cast<std::size_t>(i)], order[at_most(static_cast<std::uint32_t>(i))]);
  return order;
}

std::vector<std::int64_t> NumpyRandom::choice(std::int64_t from, std::int64_t count) {
  check(count >= 0 && count <= from, "NumpyRandom: choice: expected at most ", from, ", got ", count);
  std::vector<std::int64_t> order = permutation(from);
  order.erase(order.begin() + count, order.end());
  return order;
}

}  // namespace pom::eval
