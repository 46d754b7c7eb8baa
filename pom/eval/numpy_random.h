// The numbers of numpy's RandomState, which published scores draw their subsets and splits with.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace pom::eval {

class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed) : engine_(seed) {}

  std::vector<std::int64_t> permutation(std::int64_t count);
  // `count` of `from` different ones, as choice(from, count, replace=False) gives them.
  std::vector<std::int64_t> choice(std::int64_t from, std::int64_t count);

 private:
  std::uint32_t at_most(std::uint32_t largest);

  std::mt19937 engine_;
};

}  // namespace pom::eval
