#include "pom/eval/picture_scores.h"

#include <algorithm>

#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/eval/moments.h"
#include "pom/eval/one_thread.h"

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
    if (few) return;
    in_one_thread([&] { moments_.emplace(statistics ? *statistics : gaussian_of(reference)); });
  }
  double distance(const at::Tensor& made) const {
    if (!moments_) return frechet_of_samples(made, reference_);
    return made.size(0) <= made.size(1) ? moments_->to(made) : moments_->to(gaussian_of(made));
  }

 private:
  at::Tensor reference_;
  std::optional<FrechetReference> moments_;
};

}  // namespace

const std::vector<std::string>& score_rule_names() {
  static const std::vector<std::string> names = {"torch-fidelity", "adm",  "clean-fid",
                                                 "pytorch-fid",    "edm2", "dgm-eval"};
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
  if (name == "edm2" || name == "dgm-eval")
    return {.name = name,
            .network = ScoreNetwork::dinov2,
            .input = name == "edm2" ? InputRule::bicubic : InputRule::pillow,
            .inception_score = false,
            .kernel = false,
            .neighbours = false,
            .spatial = false};
  fail("eval: like: expected torch-fidelity, adm, clean-fid, pytorch-fid, edm2 or dgm-eval, got \"", name,
       "\"", suggestion(name, score_rule_names()));
}

std::unique_ptr<FeatureNetwork> open_network(const ScoreRules& rules, const std::filesystem::path& file,
                                             const at::Device& device) {
  if (rules.network == ScoreNetwork::dinov2) return open_dinov2(file, rules.input, device);
  const InceptionWanted wanted{.spatial = rules.spatial, .pool3 = true, .logits = rules.inception_score};
  return open_inception(file, rules.input, wanted, device);
}

Statistics statistics_of(const PictureFeatures& features) {
  Statistics statistics{gaussian_of(features.main), {}, {}};
  if (features.spatial.defined()) statistics.spatial = gaussian_of(features.spatial);
  return statistics;
}

PictureScores scores_of(const ScoredSide& made, const ScoredSide& reference, const ScoreRules& rules) {
  PictureScores scores;
  const auto leave_out = [&](const std::string& what, const std::string& why) {
    scores.left_out.push_back(what + ": " + why);
  };
  const Gaussian* main = reference.statistics ? &reference.statistics->main : nullptr;
  const Gaussian* spatial =
      reference.statistics && reference.statistics->spatial ? &*reference.statistics->spatial : nullptr;
  if (!made.pictures()) {
    check(made.statistics.has_value() && (main || reference.pictures()),
          "eval: expected two sides to compare");
    in_one_thread([&] {
      scores.frechet.all =
          frechet_distance(made.statistics->main, main ? *main : gaussian_of(reference.features.main));
    });
    leave_out("all but the distance", "the samples are statistics alone");
    return scores;
  }
  const at::Tensor &a = made.features.main, &b = reference.features.main;
  const Against against(a, b, main);
  scores.frechet =
      sampled_distance(a, [&](const at::Tensor& features) { return against.distance(features); });
  const at::Tensor& places = made.features.spatial;
  if (rules.spatial && (spatial || reference.features.spatial.defined())) {
    const Against spots(places, reference.features.spatial, spatial);
    in_one_thread([&] { scores.sfid = spots.distance(places); });
  } else if (rules.spatial) {
    leave_out("sfid", "the reference has no spatial statistics");
  }
  if (rules.inception_score) {
    if (rules.splits.splits <= a.size(0))
      in_one_thread([&] { scores.inception_score = inception_score(made.features.logits, rules.splits); });
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
