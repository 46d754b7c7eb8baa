#include "pom/train/shares.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

namespace pom::train {
namespace {

// Large enough that links are busy, small enough that the first ones leave early.
constexpr std::int64_t largest_bucket = 6 << 20, buckets_wanted = 8;

Bucket in_equal_parts(std::int64_t begin, std::int64_t end, int ranks) {
  Bucket bucket;
  for (int r = 0; r <= ranks; ++r) bucket.cuts.push_back(begin + (end - begin) / ranks * r);
  return bucket;
}

// Equal parts; begin and end are whole numbers of N pieces.
void add_equal_buckets(std::int64_t begin, std::int64_t end, std::int64_t size, int ranks,
                       std::vector<Bucket>& buckets) {
  const std::int64_t unit = flat_piece * ranks, step = (size + unit - 1) / unit * unit;
  for (; end > begin; end = std::max(begin, end - step))
    buckets.push_back(in_equal_parts(std::max(begin, end - step), end, ranks));
}

std::vector<Bucket> equal_buckets(std::int64_t total, std::int64_t early, int ranks) {
  std::vector<Bucket> buckets;
  const std::int64_t middle = early / (flat_piece * ranks) * (flat_piece * ranks);
  add_equal_buckets(0, middle, bucket_size(total), ranks, buckets);
  if (total > middle) buckets.push_back(in_equal_parts(middle, total, ranks));
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

// Of the matrices from `begin` to `end`, each of which stays whole.
void add_buckets_of_matrices(const Parameters& parameters, std::int64_t begin, std::int64_t end,
                             std::int64_t size, int ranks, std::vector<Bucket>& buckets) {
  std::vector<std::int64_t> borders;
  for (const Slice& slice : parameters.slices())
    if (slice.begin >= begin && slice.begin < end) borders.push_back(slice.begin);
  borders.push_back(end);
  for (std::size_t last = borders.size() - 1; last > 0;) {
    std::size_t first = last - 1;
    while (first > 0 && borders[last] - borders[first] < size) --first;
    buckets.push_back(divided_between({borders.begin() + static_cast<std::ptrdiff_t>(first),
                                       borders.begin() + static_cast<std::ptrdiff_t>(last) + 1},
                                      ranks));
    last = first;
  }
}

void add_bucket_of_pieces(std::int64_t begin, std::int64_t end, int ranks, std::vector<Bucket>& buckets) {
  std::vector<std::int64_t> pieces;
  for (std::int64_t at = begin; at <= end; at += flat_piece) pieces.push_back(at);
  if (pieces.size() > 1) buckets.push_back(divided_between(pieces, ranks));
}

std::vector<Bucket> buckets_of_matrices(const Parameters& parameters, int ranks) {
  std::vector<Bucket> buckets;
  add_buckets_of_matrices(parameters, 0, parameters.matrices_end(), bucket_size(parameters.total()), ranks,
                          buckets);
  add_bucket_of_pieces(parameters.matrices_end(), parameters.total(), ranks, buckets);
  return buckets;
}

// One for each layer, and others between and after them.
std::vector<Bucket> buckets_by_layer(const Parameters& parameters, bool whole_matrices, int ranks) {
  std::vector<Bucket> buckets;
  const std::int64_t size = bucket_size(parameters.total()), matrices = parameters.matrices_end();
  const auto add = [&](std::int64_t begin, std::int64_t end, std::int64_t size) {
    if (begin == end) return;
    if (!whole_matrices) return add_equal_buckets(begin, end, size, ranks, buckets);
    add_buckets_of_matrices(parameters, begin, std::min(end, matrices), size, ranks, buckets);
  };
  const std::int64_t unit = flat_piece * ranks, early = matrices / unit * unit;
  std::int64_t end = whole_matrices ? matrices : early;
  for (auto layer = parameters.layers().rbegin(); layer != parameters.layers().rend(); ++layer) {
    const std::int64_t after = layer->begin + layer->count;
    add(after, std::max(after, end), size);
    add(layer->begin, after, layer->count);
    end = layer->begin;
  }
  add(0, end, size);
  if (whole_matrices)
    add_bucket_of_pieces(matrices, parameters.total(), ranks, buckets);
  else
    add(early, parameters.total(), parameters.total());
  return buckets;
}

}  // namespace

std::int64_t bucket_size(std::int64_t total) {
  return std::clamp<std::int64_t>(total / buckets_wanted, flat_piece, largest_bucket);
}

bool Bucket::equal() const {
  for (std::size_t r = 2; r < cuts.size(); ++r)
    if (cuts[r] - cuts[r - 1] != cuts[1] - cuts[0]) return false;
  return true;
}

Shares::Shares(const Parameters& parameters, const parallel::Ranks& ranks, bool divided, bool whole_matrices)
    : ranks_(ranks), divided_(divided && !ranks.alone()), total_(parameters.total()) {
  buckets_ = divided_ && !parameters.layers().empty()
                 ? buckets_by_layer(parameters, whole_matrices, ranks.size())
             : divided_ && whole_matrices ? buckets_of_matrices(parameters, ranks.size())
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

const OwnRange* Shares::own_of(const Bucket& bucket) const {
  const std::int64_t begin = bucket.cuts[static_cast<std::size_t>(ranks_.rank())];
  if (bucket.count_of(ranks_.rank()) == 0) return nullptr;
  return &*std::ranges::lower_bound(own_, begin, {}, &OwnRange::begin);
}

void Shares::start_gather(const Bucket& bucket, const at::Tensor& own, at::Tensor into,
                          const parallel::Ranks& via, std::vector<parallel::Pending>& pending) const {
  const OwnRange* mine = own_of(bucket);
  if (bucket.equal()) {
    pending.push_back(via.start_gather(into, mine->of_own(own)));
    return;
  }
  for (int r = 0; r < ranks_.size(); ++r) {
    if (bucket.count_of(r) == 0) continue;
    at::Tensor theirs =
        into.narrow(0, bucket.cuts[static_cast<std::size_t>(r)] - bucket.begin(), bucket.count_of(r));
    if (r == ranks_.rank()) theirs.copy_(mine->of_own(own));
    pending.push_back(via.start_broadcast(theirs, r));
  }
}

void Shares::put(const Bucket& bucket, const at::Tensor& numbers, at::Tensor& into) const {
  c10::NoGradGuard no_grad;
  if (!divided_ || into.numel() == total_) {
    into.narrow(0, bucket.begin(), bucket.count()).copy_(numbers);
  } else if (const OwnRange* mine = own_of(bucket)) {
    mine->of_own(into).copy_(numbers.narrow(0, mine->begin - bucket.begin(), mine->count));
  }
}

at::Tensor Shares::whole_on_first(const at::Tensor& own) const {
  c10::NoGradGuard no_grad;
  if (!divided_) return ranks_.first() ? own.to(at::kCPU) : at::Tensor();
  at::Tensor flat;
  if (ranks_.first()) flat = at::empty({total_}, own.options().device(at::kCPU));
  for (const Bucket& bucket : buckets_) {
    const at::Tensor piece = at::empty({bucket.count()}, own.options());
    std::vector<parallel::Pending> pending;
    start_gather(bucket, own, piece, ranks_, pending);
    for (parallel::Pending& each : pending) each.wait();
    if (ranks_.first()) flat.narrow(0, bucket.begin(), bucket.count()).copy_(piece);
  }
  return flat;
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
