#include "pom/eval/scenes_report.h"

#include <algorithm>

#include "pom/base/error.h"

namespace pom::eval {

void SceneScores::add(const SceneQuestion& question, const SceneVerdict& verdict) {
  const SceneAgreement agreement = compare(question.scene, verdict);
  ++pictures;
  objects += agreement.objects ? 1 : 0;
  colours += agreement.colours ? 1 : 0;
  pairs += agreement.pairs ? 1 : 0;
  if (agreement.relations_asked > 0) {
    ++relations_asked;
    relations += agreement.relations ? 1 : 0;
  }
  counts += agreement.count ? 1 : 0;
  everything += agreement.everything() ? 1 : 0;
  if (data::names_ground(question.scene.wording)) {
    ++grounds_asked;
    grounds += agreement.ground ? 1 : 0;
  }
  fitting += agreement.fits ? 1 : 0;
  for (const FoundObject& object : verdict.objects) {
    ++found;
    blobs += object.fits() ? 0 : 1;
    misfits += object.misfit;
    worst_misfit = std::max(worst_misfit, object.misfit);
  }
  residues += verdict.residue;
  worst_residue = std::max(worst_residue, verdict.residue);
}

SceneScores added(const SceneScores& a, const SceneScores& b) {
  SceneScores sum = a;
  sum.pictures += b.pictures;
  sum.objects += b.objects, sum.colours += b.colours, sum.pairs += b.pairs;
  sum.relations += b.relations, sum.counts += b.counts, sum.everything += b.everything;
  sum.relations_asked += b.relations_asked;
  sum.grounds_asked += b.grounds_asked, sum.grounds += b.grounds;
  sum.fitting += b.fitting, sum.found += b.found, sum.blobs += b.blobs;
  sum.misfits += b.misfits, sum.residues += b.residues;
  sum.worst_misfit = std::max(a.worst_misfit, b.worst_misfit);
  sum.worst_residue = std::max(a.worst_residue, b.worst_residue);
  sum.read_alike += b.read_alike, sum.read_twice += b.read_twice;
  return sum;
}

SceneScores& SceneTable::of(const SceneQuestion& question) {
  const std::string& name = scene_splits()[static_cast<std::size_t>(question.split)];
  const auto found = std::ranges::find(splits_, name);
  check(found != splits_.end(), "SceneTable: expected a question of its splits, got one of ", name);
  return scores_[static_cast<std::size_t>(found - splits_.begin())];
}

void SceneTable::add(std::span<const SceneQuestion> questions, std::span<const SceneVerdict> verdicts) {
  check(questions.size() == verdicts.size(), "SceneTable: expected an answer to each of ", questions.size(),
        " questions, got ", verdicts.size());
  for (std::size_t i = 0; i < questions.size(); ++i) of(questions[i]).add(questions[i], verdicts[i]);
}

void SceneTable::add_readings(std::span<const SceneQuestion> questions, const std::vector<bool>& alike) {
  check(questions.size() == alike.size(), "SceneTable: expected a reading of each of ", questions.size(),
        " pictures, got ", alike.size());
  for (std::size_t i = 0; i < questions.size(); ++i) {
    SceneScores& scores = of(questions[i]);
    ++scores.read_twice;
    scores.read_alike += alike[i] ? 1 : 0;
  }
}

SceneScores SceneTable::over_all() const {
  SceneScores sum;
  for (const SceneScores& scores : scores_) sum = added(sum, scores);
  return sum;
}

}  // namespace pom::eval
