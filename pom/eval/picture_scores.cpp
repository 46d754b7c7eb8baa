#include "pom/eval/picture_scores.h"

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/eval/moments.h"

namespace pom::eval {
namespace {

Gaussian gaussian_of(const at::Tensor& features) {
  Moments moments;
  moments.add(0, features);
  return moments.gaussian();
}

// What samples are compared with: statistics where there are some; samples where either side has few, which
// is exact; else their moments.
class Against {
 public:
  Against(const at::Tensor& made, const at::Tensor& reference, const Gaussian* statistics)
      : reference_(reference) {
    const bool few = !statistics && reference.defined() &&
                     (made.size(0) <= made.size(1) || reference.size(0) <= reference.size(1));
    if (!few) moments_.emplace(statistics ? *statistics : gaussian_of(reference));
  }
  double distance(const at::Tensor& made) const {
    if (!moments_) return frechet_of_samples(made, reference_);
    return made.size(0) <= made.size(1) ? moments_->to(made) : moments_->to(gaussian_of(made));
  }

 private:
  at::Tensor reference_;
  std::optional<FrechetReference> moments_;
};

at::Tensor every_second(const at::Tensor& x, std::int64_t first) {
  return x.slice(0, first, std::nullopt, 2);
}

// The bias of a distance falls as 1/N: twice that of all less that of halves has none of this order.
double without_bias(double all, const at::Tensor& made, const Against& against) {
  const double halves =
      (against.distance(every_second(made, 0)) + against.distance(every_second(made, 1))) / 2;
  return 2 * all - halves;
}

constexpr std::int64_t tenths = 10;

// By the jackknife: each tenth of the samples is left out once.
double deviation_over_samples(const at::Tensor& made, const Against& against) {
  const at::Tensor number = at::arange(made.size(0), at::kLong).remainder(tenths);
  std::vector<double> without;
  for (std::int64_t i = 0; i < tenths; ++i)
    without.push_back(against.distance(made.index_select(0, (number != i).nonzero().flatten())));
  double mean = 0, squares = 0;
  for (const double x : without) mean += x / tenths;
  for (const double x : without) squares += (x - mean) * (x - mean);
  return std::sqrt(squares * (tenths - 1) / tenths);
}

}  // namespace

const std::vector<std::string>& score_rule_names() {
  static const std::vector<std::string> names = {"torch-fidelity", "adm", "clean-fid", "pytorch-fid"};
  return names;
}

ScoreRules score_rules(const std::string& name) {
  if (name == "torch-fidelity") return {.name = name, .splits = {.splits = 10, .shuffled = 2020}};
  if (name == "adm")
    return {.name = name,
            .kernel = false,
            .splits = {.splits = 0, .run = 5000},
            .balls = {.k = 3, .dtype = at::kHalf}};
  if (name == "clean-fid")
    return {.name = name,
            .input = InputRule::clean,
            .inception_score = false,
            .neighbours = false,
            .spatial = false};
  if (name == "pytorch-fid")
    return {.name = name,
            .input = InputRule::torch,
            .inception_score = false,
            .kernel = false,
            .neighbours = false,
            .spatial = false};
  fail("eval: like: expected torch-fidelity, adm, clean-fid or pytorch-fid, got \"", name, "\"",
       suggestion(name, score_rule_names()));
}

InceptionWanted wanted_by(const ScoreRules& rules) {
  return {.spatial = rules.spatial, .pool3 = true, .logits = rules.inception_score};
}

Statistics statistics_of(const InceptionFeatures& features) {
  Statistics statistics{gaussian_of(features.pool3), {}, {}};
  if (features.spatial.defined()) statistics.spatial = gaussian_of(features.spatial);
  return statistics;
}

PictureScores scores_of(const ScoredSide& made, const ScoredSide& reference, const ScoreRules& rules) {
  PictureScores scores;
  const auto leave_out = [&](const std::string& what, const std::string& why) {
    scores.left_out.push_back(what + ": " + why);
  };
  const Gaussian* pool3 = reference.statistics ? &reference.statistics->pool3 : nullptr;
  const Gaussian* spatial =
      reference.statistics && reference.statistics->spatial ? &*reference.statistics->spatial : nullptr;
  if (!made.pictures()) {
    check(made.statistics.has_value() && (pool3 || reference.pictures()),
          "eval: expected two sides to compare");
    scores.fid =
        frechet_distance(made.statistics->pool3, pool3 ? *pool3 : gaussian_of(reference.features.pool3));
    leave_out("all but fid", "the samples are statistics alone");
    return scores;
  }
  const at::Tensor &a = made.features.pool3, &b = reference.features.pool3;
  const Against against(a, b, pool3);
  scores.fid = against.distance(a);
  if (a.size(0) >= 2 * tenths) scores.fid_deviation = deviation_over_samples(a, against);
  if (a.size(0) >= 4) scores.fid_unbiased = without_bias(*scores.fid, a, against);
  const at::Tensor& places = made.features.spatial;
  if (rules.spatial && (spatial || reference.features.spatial.defined()))
    scores.sfid = Against(places, reference.features.spatial, spatial).distance(places);
  else if (rules.spatial)
    leave_out("sfid", "the reference has no spatial statistics");
  if (rules.inception_score) {
    if (rules.splits.splits <= a.size(0))
      scores.inception_score = inception_score(made.features.logits, rules.splits);
    else
      leave_out("is",
                detail::concat("expected at least ", rules.splits.splits, " pictures, got ", a.size(0)));
  }
  if (!rules.kernel && !rules.neighbours) return scores;
  if (!b.defined()) {
    leave_out("kid, precision, recall", "the reference is statistics alone");
    return scores;
  }
  const std::int64_t smaller = std::min(a.size(0), b.size(0));
  if (rules.kernel && rules.subsets.size <= smaller)
    scores.kid = kernel_distance(a, b, rules.subsets);
  else if (rules.kernel)
    leave_out("kid", detail::concat("expected at least ", rules.subsets.size, " pictures on both sides, got ",
                                    smaller));
  if (rules.neighbours && smaller > rules.balls.k)
    scores.neighbours = neighbours(b, a, rules.balls);
  else if (rules.neighbours)
    leave_out("precision, recall",
              detail::concat("expected more than ", rules.balls.k, " pictures, got ", smaller));
  return scores;
}

}  // namespace pom::eval
