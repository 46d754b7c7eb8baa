// Features of both sides of a score: of pictures in files, of statistics, of images that a model makes. On
// several ranks each has its share of the pictures.
#pragma once

#include <memory>
#include <string>

#include "cli/eval/eval.h"
#include "pom/eval/picture_features.h"
#include "pom/eval/picture_scores.h"

namespace pom::cli {

// What was scored, and what of it the recipe names.
struct ScoringSide {
  eval::ScoredSide scored;
  std::int64_t count = 0;
  std::string kind, size, order;
};

class Scoring {
 public:
  Scoring(const EvalOptions& options, const StopSignals& signals);

  const eval::ScoreRules& rules() const { return rules_; }
  const eval::FeatureNetwork& network() const { return *network_; }

  // A file of statistics is taken as it is; pictures that a reference has beside them are for its neighbours.
  ScoringSide side(const std::string& path, const std::string& what);
  // Images of a model, each class as often, class by class; each goes to the features as it is made.
  ScoringSide model(const std::string& folder);

 private:
  // Statistics that say how they were made have to be of this network.
  void check_statistics(const eval::Statistics& statistics, const std::string& path) const;
  eval::PictureFeatures features(ScoringSide& side, const std::string& what, const eval::PictureAt& picture);
  // Those of all ranks, from each one's share.
  static eval::PictureFeatures gathered(const eval::PictureFeatures& mine, const parallel::Share& share,
                                        std::int64_t count);

  const EvalOptions& options_;
  const StopSignals& signals_;
  eval::ScoreRules rules_;
  std::unique_ptr<eval::FeatureNetwork> network_;
};

}  // namespace pom::cli
