// The field's scores of generated pictures, each by the rules of an implementation that papers name. What is
// needed to compare two of them is in the recipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pom/eval/feature_scores.h"
#include "pom/eval/inception.h"
#include "pom/eval/inception_input.h"
#include "pom/eval/statistics_file.h"

namespace pom::eval {

// How a named implementation computes its scores.
struct ScoreRules {
  std::string name;  // "torch-fidelity", "adm", "clean-fid", "pytorch-fid"
  InputRule input = InputRule::tensorflow;
  bool inception_score = true, kernel = true, neighbours = true, spatial = true;
  InceptionScoreOptions splits = {};
  KernelOptions subsets = {};
  NeighbourOptions balls = {};
};
const std::vector<std::string>& score_rule_names();
ScoreRules score_rules(const std::string& name);  // an error that names them, of any other

// One side of a comparison: features of pictures, statistics, or both, of which distances take the statistics
// and neighbours the pictures (ADM's references).
struct ScoredSide {
  InceptionFeatures features = {};  // undefined where there are none
  std::optional<Statistics> statistics = {};
  bool pictures() const { return features.pool3.defined(); }
};

struct PictureScores {
  std::optional<double> fid, fid_deviation, fid_unbiased, sfid;
  std::optional<ScoreSpread> inception_score, kid;
  std::optional<Neighbours> neighbours;
  std::vector<std::string> left_out;  // what could not be computed, and why
};

// Which features the rules need.
InceptionWanted wanted_by(const ScoreRules& rules);
Statistics statistics_of(const InceptionFeatures& features);
PictureScores scores_of(const ScoredSide& made, const ScoredSide& reference, const ScoreRules& rules);

}  // namespace pom::eval
