// The field's scores of generated pictures, each by the rules of an implementation that papers name. What is
// needed to compare two of them is in the recipe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pom/eval/feature_network.h"
#include "pom/eval/feature_scores.h"
#include "pom/eval/sample_bias.h"
#include "pom/eval/statistics_file.h"

namespace pom::eval {

// How a named implementation computes its scores.
enum class ScoreNetwork { inception, dinov2 };
struct ScoreRules {
  std::string name;  // "torch-fidelity", "adm", "clean-fid", "pytorch-fid", "edm2", "dgm-eval"
  ScoreNetwork network = ScoreNetwork::inception;
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
  PictureFeatures features = {};  // undefined where there are none
  std::optional<Statistics> statistics = {};
  bool pictures() const { return features.main.defined(); }
};

struct PictureScores {
  SampledDistance frechet;  // FID, or FD of another network
  std::optional<double> sfid;
  std::optional<ScoreSpread> inception_score, kid;
  std::optional<Neighbours> neighbours;
  std::vector<std::string> left_out;  // what could not be computed, and why
};

// The rules' network, with the features that they need, of the file of its weights.
std::unique_ptr<FeatureNetwork> open_network(const ScoreRules& rules, const std::filesystem::path& file,
                                             const at::Device& device);
Statistics statistics_of(const PictureFeatures& features);
PictureScores scores_of(const ScoredSide& made, const ScoredSide& reference, const ScoreRules& rules);

}  // namespace pom::eval
