// Which rank keeps what of the flat memory of parameters, and the pieces in which it travels. N ranks.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/parallel/ranks.h"
#include "pom/train/parameters.h"

namespace pom::train {

// About how many numbers are sent at once, of so many in all.
std::int64_t bucket_size(std::int64_t total);

// A range of the flat memory that is sent at once; rank r keeps [cuts[r], cuts[r + 1]) of it.
struct Bucket {
  std::vector<std::int64_t> cuts;  // N + 1

  std::int64_t begin() const { return cuts.front(); }
  std::int64_t count() const { return cuts.back() - cuts.front(); }
  std::int64_t count_of(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return cuts[r + 1] - cuts[r];
  }
  bool equal() const;  // parts of one size
};

// A rank's part of a bucket: in the flat memory, and in a tensor of its parts alone.
struct OwnRange {
  std::int64_t begin = 0, count = 0, at = 0;

  at::Tensor of_flat(const at::Tensor& flat) const { return flat.narrow(0, begin, count); }
  at::Tensor of_own(const at::Tensor& own) const { return own.narrow(0, at, count); }
};

class Shares {
 public:
  // Everything is everyone's, unless `divided`; matrices between layers are divided whole where
  // `whole_matrices`.
  Shares(const Parameters& parameters, const parallel::Ranks& ranks, bool divided, bool whole_matrices);

  bool divided() const { return divided_; }
  // Those of the last layers first: that is the order in which gradients come.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<OwnRange>& own() const { return own_; }  // where not divided, one of everything
  std::int64_t own_count() const { return own_count_; }
  // The range in a tensor like the parameters or, where that is smaller, of the own parts alone.
  at::Tensor view(const at::Tensor& t, const OwnRange& range) const;
  // The own parts of what is laid out like the parameters.
  at::Tensor own_part(const at::Tensor& flat) const;

  // Fills a bucket's numbers in from the own parts of all, `own` among them; through another group of the
  // same ranks, if one likes.
  void start_gather(const Bucket& bucket, const at::Tensor& own, at::Tensor into, const parallel::Ranks& via,
                    std::vector<parallel::Pending>& pending) const;
  // What of a bucket is kept here goes into memory like the parameters, or of own parts.
  void put(const Bucket& bucket, const at::Tensor& numbers, at::Tensor& into) const;

  // Fills in what the others keep, in flat memory that has this rank's own parts.
  void gather(at::Tensor& flat) const;
  // The same from own parts alone, into memory like the parameters.
  at::Tensor whole(const at::Tensor& own) const;
  // The same on the CPU of the first rank, in little memory of the device; undefined elsewhere.
  at::Tensor whole_on_first(const at::Tensor& own) const;

 private:
  parallel::Ranks ranks_;
  bool divided_;
  const OwnRange* own_of(const Bucket& bucket) const;  // none: this rank has nothing of it

  std::int64_t total_;
  std::vector<Bucket> buckets_;
  std::vector<OwnRange> own_;
  std::int64_t own_count_ = 0;
};

}  // namespace pom::train
