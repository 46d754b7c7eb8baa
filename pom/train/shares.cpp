#include "pom/train/shares.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

namespace pom::train {
namespace {

// Large enough that links are busy, small enough that the first ones leave early.
constexpr std::int64_t largest_bucket = 6 << 20, buckets_wanted = 8;

std::int64_t bucket_size(std::int64_t total) {
  return std::clamp<std::int64_t>(total / buckets_wanted, flat_piece, largest_bucket);
}

// Equal parts; the memory is a whole number of N pieces long.
std::vector<Bucket> equal_buckets(std::int64_t total, std::int64_t early, int ranks) {
  const std::int64_t unit = flat_piece * ranks;
  const std::int64_t size = (bucket_size(total) + unit - 1) / unit * unit;
  std::vector<Bucket> buckets;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    Bucket bucket;
    for (int r = 0; r <= ranks; ++r) bucket.cuts.push_back(begin + (end - begin) / ranks * r);
    buckets.push_back(std::move(bucket));
  };
  const std::int64_t middle = early / unit * unit;
  for (std::int64_t end = middle; end > 0; end = std::max<std::int64_t>(0, end - size))
    add(std::max<std::int64_t>(0, end - size), end);
  add(middle, total);
  return buckets;
}

// [units[i], units[i + 1]) stay together; each rank gets about as much.
Bucket divided_between(const std::vector<std::int64_t>& units, int ranks) {
  Bucket bucket{{units.front()}};
  const std::int64_t all = units.back() - units.front();
  for (int r = 1; r < ranks; ++r) {
    const std::int64_t wanted = units.front() + all * r / ranks;
    const auto after = std::ranges::lower_bound(units, wanted);
    std::int64_t cut = *after;
    if (after != units.begin() && wanted - *(after - 1) < *after - wanted) cut = *(after - 1);
    bucket.cuts.push_back(std::max(cut, bucket.cuts.back()));
  }
  bucket.cuts.push_back(units.back());
  return bucket;
}

std::vector<Bucket> buckets_of_matrices(const Parameters& parameters, int ranks) {
  std::vector<std::int64_t> borders;
  for (const Slice& slice : parameters.slices())
    if (slice.begin < parameters.matrices_end()) borders.push_back(slice.begin);
  borders.push_back(parameters.matrices_end());
  const std::int64_t size = bucket_size(parameters.values().numel());
  std::vector<Bucket> buckets;
  for (std::size_t last = borders.size() - 1; last > 0;) {
    std::size_t first = last - 1;
    while (first > 0 && borders[last] - borders[first] < size) --first;
    buckets.push_back(divided_between({borders.begin() + static_cast<std::ptrdiff_t>(first),
                                       borders.begin() + static_cast<std::ptrdiff_t>(last) + 1},
                                      ranks));
    last = first;
  }
  std::vector<std::int64_t> pieces;
  for (std::int64_t at = parameters.matrices_end(); at <= parameters.values().numel(); at += flat_piece)
    pieces.push_back(at);
  if (pieces.size() > 1) buckets.push_back(divided_between(pieces, ranks));
  return buckets;
}

}  // namespace

bool Bucket::equal() const {
  for (std::size_t r = 2; r < cuts.size(); ++r)
    if (cuts[r] - cuts[r - 1] != cuts[1] - cuts[0]) return false;
  return true;
}

Shares::Shares(const Parameters& parameters, const parallel::Ranks& ranks, bool divided, bool whole_matrices)
    : ranks_(ranks), divided_(divided && !ranks.alone()), total_(parameters.values().numel()) {
  buckets_ = divided_ && whole_matrices ? buckets_of_matrices(parameters, ranks.size())
                                        : equal_buckets(total_, parameters.matrices_end(), ranks.size());
  if (!divided_) {
    own_ = {{0, total_, 0}};
    own_count_ = total_;
    return;
  }
  for (const Bucket& bucket : buckets_)
    if (const std::int64_t count = bucket.count_of(ranks.rank()); count > 0)
      own_.push_back({bucket.cuts[static_cast<std::size_t>(ranks.rank())], count, 0});
  std::ranges::sort(own_, {}, &OwnRange::begin);  // as the layers come
  for (OwnRange& range : own_) range.at = std::exchange(own_count_, own_count_ + range.count);
}

at::Tensor Shares::view(const at::Tensor& t, const OwnRange& range) const {
  return t.numel() == total_ ? range.of_flat(t) : range.of_own(t);
}

at::Tensor Shares::own_part(const at::Tensor& flat) const {
  if (!divided_) return flat;
  c10::NoGradGuard no_grad;
  at::Tensor own = at::empty({own_count_}, flat.options());
  for (const OwnRange& range : own_) range.of_own(own).copy_(range.of_flat(flat));
  return own;
}

void Shares::gather(at::Tensor& flat) const {
  if (!divided_) return;
  std::vector<parallel::Pending> under_way;
  for (const Bucket& bucket : buckets_) {
    const auto part = [&](int r) {
      return flat.narrow(0, bucket.cuts[static_cast<std::size_t>(r)], bucket.count_of(r));
    };
    if (bucket.equal()) {
      at::Tensor all = flat.narrow(0, bucket.begin(), bucket.count());
      under_way.push_back(ranks_.start_gather(all, part(ranks_.rank()).clone()));
      continue;
    }
    for (int r = 0; r < ranks_.size(); ++r) {
      at::Tensor theirs = part(r);
      if (theirs.numel() > 0) under_way.push_back(ranks_.start_broadcast(theirs, r));
    }
  }
  for (parallel::Pending& each : under_way) each.wait();
}

at::Tensor Shares::whole(const at::Tensor& own) const {
  if (!divided_) return own;
  c10::NoGradGuard no_grad;
  at::Tensor flat = at::empty({total_}, own.options());
  for (const OwnRange& range : own_) range.of_flat(flat).copy_(range.of_own(own));
  gather(flat);
  return flat;
}

}  // namespace pom::train
