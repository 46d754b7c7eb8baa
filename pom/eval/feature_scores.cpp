#include "pom/eval/feature_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/eval/frechet.h"
#include "pom/eval/numpy_random.h"
#include "pom/eval/one_thread.h"

namespace pom::eval {
namespace {

void check_features(const at::Tensor& x, const char* score, const char* name, std::int64_t least) {
  check(x.dim() == 2 && x.size(0) >= least, score, ": ", name, ": expected (N, F) with N at least ", least,
        ", got ", x.sizes());
  check(x.isfinite().all().item<bool>(), score, ": ", name,
        ": expected finite features, got NaN or infinite ones");
}

void check_pair(const at::Tensor& a, const at::Tensor& b, const char* score, std::int64_t least) {
  check_features(a, score, "a", least);
  check_features(b, score, "b", least);
  check(a.size(1) == b.size(1), score, ": b: expected ", a.size(1), " features, got ", b.size(1));
}

ScoreSpread spread_of(const std::vector<double>& values) {
  ScoreSpread spread;
  for (const double v : values) spread.mean += v / static_cast<double>(values.size());
  for (const double v : values)
    spread.deviation += (v - spread.mean) * (v - spread.mean) / static_cast<double>(values.size());
  spread.deviation = std::sqrt(spread.deviation);
  return spread;
}

at::Tensor rows(const at::Tensor& x, const std::vector<std::int64_t>& order) {
  return x.index_select(0, at::tensor(order, at::kLong).to(x.device()));
}

double score_of_split(const at::Tensor& logits) {
  const at::Tensor log_p = at::log_softmax(logits, 1), p = log_p.exp();
  const at::Tensor log_mean = p.mean(0, /*keepdim=*/true).log();
  // A class that nobody has adds nothing: 0·log 0.
  const at::Tensor each = (p * (log_p - log_mean)).masked_fill(p == 0, 0).sum(1);
  return std::exp(each.mean().item<double>());
}

// Where splits begin, and the end.
std::vector<std::int64_t> split_borders(std::int64_t n, const InceptionScoreOptions& options) {
  std::vector<std::int64_t> borders;
  if (options.splits > 0) {
    check(options.splits <= n, "inception_score: splits: expected at most ", n, ", got ", options.splits);
    for (std::int64_t i = 0; i <= options.splits; ++i) borders.push_back(i * n / options.splits);
    return borders;
  }
  check(options.run >= 1, "inception_score: run: expected at least 1, got ", options.run);
  for (std::int64_t at = 0; at < n; at += options.run) borders.push_back(at);
  borders.push_back(n);
  return borders;
}

at::Tensor kernel(const at::Tensor& x, const at::Tensor& y) {
  return (at::matmul(x, y.t()) / static_cast<double>(x.size(1)) + 1).pow(3);
}

constexpr std::int64_t tile = 4096;

// Squared distances of some rows to all of y, through a product.
class Distances {
 public:
  Distances(const at::Tensor& y, at::ScalarType dtype) : y_(y.to(dtype)), squares_(y_.square().sum(1)) {}

  at::Tensor from(const at::Tensor& x) const {
    const at::Tensor rows = x.to(y_.scalar_type());
    return (rows.square().sum(1, /*keepdim=*/true) - 2 * at::matmul(rows, y_.t()) + squares_).clamp_min(0);
  }

 private:
  at::Tensor y_, squares_;
};

// Of each row, the squared distance to its k-th neighbour among the others: the (k + 1)-th smallest, for its
// own is among them.
at::Tensor radii(const at::Tensor& x, const NeighbourOptions& options) {
  const Distances distances(x, options.dtype);
  std::vector<at::Tensor> all;
  for (std::int64_t at = 0; at < x.size(0); at += tile) {
    const at::Tensor rows = x.narrow(0, at, std::min(tile, x.size(0) - at));
    all.push_back(std::get<0>(distances.from(rows).to(at::kDouble).kthvalue(options.k + 1, 1)));
  }
  return at::cat(all);
}

// How many balls around the rows of `centres` each point is in; and whether each ball holds a point.
struct Within {
  at::Tensor counts, holds;  // (points), (centres)
};
Within within(const at::Tensor& points, const at::Tensor& centres, const at::Tensor& radius,
              const NeighbourOptions& options) {
  const Distances distances(centres, options.dtype);
  std::vector<at::Tensor> counts;
  at::Tensor holds = at::zeros({centres.size(0)}, at::kBool);
  for (std::int64_t at = 0; at < points.size(0); at += tile) {
    const at::Tensor d =
        distances.from(points.narrow(0, at, std::min(tile, points.size(0) - at))).to(at::kDouble);
    const at::Tensor inside = options.strict ? d < radius : d <= radius;
    counts.push_back(inside.sum(1));
    holds.logical_or_(inside.any(0));
  }
  return {at::cat(counts), holds};
}

double share(const at::Tensor& flags) {
  return flags.to(at::kDouble).mean().item<double>();
}

}  // namespace

ScoreSpread inception_score(const at::Tensor& logits, const InceptionScoreOptions& options) {
  c10::NoGradGuard no_grad;
  check_features(logits, "inception_score", "logits", 1);
  at::Tensor x = logits.to(at::kDouble);
  if (options.shuffled >= 0)
    x = rows(x, NumpyRandom(static_cast<std::uint32_t>(options.shuffled)).permutation(x.size(0)));
  const std::vector<std::int64_t> borders = split_borders(x.size(0), options);
  std::vector<double> scores;
  for (std::size_t i = 1; i < borders.size(); ++i)
    scores.push_back(score_of_split(x.narrow(0, borders[i - 1], borders[i] - borders[i - 1])));
  return spread_of(scores);
}

double kernel_distance_of_all(const at::Tensor& a, const at::Tensor& b, bool cross_diagonal) {
  c10::NoGradGuard no_grad;
  check_pair(a, b, "kernel_distance", 2);
  check(a.size(0) == b.size(0), "kernel_distance: b: expected as many samples as a (", a.size(0), "), got ",
        b.size(0));
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  const auto m = static_cast<double>(x.size(0));
  const at::Tensor xx = kernel(x, x), yy = kernel(y, y), xy = kernel(x, y);
  const auto off_diagonal = [](const at::Tensor& k) { return (k.sum() - k.trace()).item<double>(); };
  const double own = (off_diagonal(xx) + off_diagonal(yy)) / (m * (m - 1));
  if (cross_diagonal) return own - 2 * xy.sum().item<double>() / (m * m);
  return own - 2 * off_diagonal(xy) / (m * (m - 1));
}

ScoreSpread kernel_distance(const at::Tensor& a, const at::Tensor& b, const KernelOptions& options) {
  check_pair(a, b, "kernel_distance", 2);
  check(options.size >= 2 && options.size <= std::min(a.size(0), b.size(0)),
        "kernel_distance: size: expected 2 to ", std::min(a.size(0), b.size(0)),
        ", the samples of the smaller set, got ", options.size);
  check(options.subsets >= 1, "kernel_distance: subsets: expected at least 1, got ", options.subsets);
  NumpyRandom random(static_cast<std::uint32_t>(options.seed));
  const auto subsets = static_cast<std::size_t>(options.subsets);
  std::vector<std::vector<std::int64_t>> of_a(subsets), of_b(subsets);
  for (std::size_t i = 0; i < subsets; ++i) {
    of_a[i] = random.choice(a.size(0), options.size);
    of_b[i] = random.choice(b.size(0), options.size);
  }
  std::vector<double> values(subsets);
  each_in_one_thread(options.subsets, options.subsets, [&](std::int64_t number) {
    const auto i = static_cast<std::size_t>(number);
    values[i] = kernel_distance_of_all(rows(a, of_a[i]), rows(b, of_b[i]), options.cross_diagonal);
  });
  return spread_of(values);
}

Neighbours neighbours(const at::Tensor& real, const at::Tensor& made, const NeighbourOptions& options) {
  c10::NoGradGuard no_grad;
  check(options.k >= 1, "neighbours: k: expected at least 1, got ", options.k);
  check_pair(real, made, "neighbours", options.k + 1);
  const at::Tensor around_real = radii(real, options), around_made = radii(made, options);
  const Within of_made = within(made, real, around_real, options);
  const Within of_real = within(real, made, around_made, options);
  Neighbours result;
  result.precision = share(of_made.counts > 0);
  result.recall = share(of_real.counts > 0);
  result.density = of_made.counts.to(at::kDouble).mean().item<double>() / static_cast<double>(options.k);
  result.coverage = share(of_made.holds);
  return result;
}

// tr (A B)^½ is the sum of the singular values of X Yᵀ / √((n − 1)(m − 1)), X and Y centred.
double frechet_of_samples(const at::Tensor& a, const at::Tensor& b) {
  c10::NoGradGuard no_grad;
  check_pair(a, b, "frechet_distance", 2);
  if (a.size(0) > a.size(1) && b.size(0) > b.size(1))
    return frechet_distance(fit_gaussian(a), fit_gaussian(b));
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  const auto n = static_cast<double>(x.size(0) - 1), m = static_cast<double>(y.size(0) - 1);
  const at::Tensor x_mean = x.mean(0), y_mean = y.mean(0), xc = x - x_mean, yc = y - y_mean;
  const at::Tensor shared = at::linalg_svdvals(at::matmul(xc, yc.t())).sum() / std::sqrt(n * m);
  const at::Tensor distance =
      (x_mean - y_mean).square().sum() + xc.square().sum() / n + yc.square().sum() / m - 2 * shared;
  return std::max(0.0, distance.item<double>());
}

}  // namespace pom::eval
