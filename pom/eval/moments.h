// Mean and covariance of features that come in pieces, with bits that depend on the features and their places
// alone. F features.
#pragma once

#include <cstdint>
#include <map>

#include <ATen/core/Tensor.h>

#include "pom/eval/frechet.h"

namespace pom::eval {

// Sums go over blocks of so many neighbouring samples, and over the blocks in their order.
inline constexpr std::int64_t moment_block = 256;

class Moments {
 public:
  // Rows (n, F) of the samples first, first + 1, …: whole blocks, but for the last one of all. In any order,
  // by whomever, each once.
  void add(std::int64_t first, const at::Tensor& features);

  std::int64_t count() const { return count_; }
  // Every block from the first on has to be there, and at least two samples.
  Gaussian gaussian() const;

 private:
  struct Block {
    std::int64_t count = 0;
    at::Tensor sum, products;  // (F), (F, F), fp64
  };
  static Block block_of(const at::Tensor& features, std::int64_t at);
  void keep(std::int64_t number, Block block);
  void fold();  // what is complete from the beginning on goes into one

  std::map<std::int64_t, Block> blocks_;  // by number, those that wait for one before them
  Block folded_;                          // of the first so many blocks
  std::int64_t next_ = 0, count_ = 0;
};

}  // namespace pom::eval
