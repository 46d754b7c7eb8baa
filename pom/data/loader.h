// Batches in an order that is a function of the seed and the place alone, prepared ahead by worker threads.
// B examples in a batch, or in a rank's share of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/data/dataset.h"
#include "pom/data/order.h"

namespace pom::data {

struct Batch {
  at::Tensor pictures;     // (B, C, H, W), or (B, C, F, H, W) of clips: uint8 of pictures, fp32 of latents
  at::Tensor labels;       // (B) int64
  std::int64_t first = 0;  // the place of its first example: examples that came before it, over all epochs
  std::vector<std::string> captions = {};  // of clips, B of them; or of each part of each clip, clip by clip
  at::Tensor text = {};                    // (B, tokens, width) fp16, where the data set has text states
  at::Tensor text_mask = {};               // (B, tokens) bool
};

struct LoaderOptions {
  std::int64_t batch = 1;
  std::vector<std::int64_t> rows = {};  // of each batch, those to read: a rank's share; none: all of them
  std::int64_t workers = 0;             // 0: by the cores
  std::int64_t prefetch = 4;            // batches that may wait ready
  std::uint64_t seed = 0;               // of the order
  std::int64_t start = 0;               // where to go on: examples taken before
  bool pinned = false;                  // pictures in memory that a GPU reads while the host goes on
  // Called from next(), in order, once for each example that could not be read.
  std::function<void(const std::string& name, const std::string& why)> on_broken = {};
};

// The order: place p lies in epoch p / size at position p % size of that epoch's permutation of all examples
// (of an endless data set, example p; of one in shards, see Order). Batches run on over the end of an epoch.
// An example that cannot be read is replaced by the next index after it that can, so that the order stays a
// function of the place; a data set of which nothing can be read is an error.
class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch; what a worker threw is thrown here.
  Batch next();
  // Examples that next() has given so far, with those before `start`: the whole state of the loader.
  std::int64_t place() const;
  std::int64_t epoch() const;
  std::int64_t broken() const;  // different examples that could not be read

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::data
