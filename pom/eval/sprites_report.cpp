#include "pom/eval/sprites_report.h"

#include <algorithm>
#include <cmath>

#include "pom/base/error.h"

namespace pom::eval {

Interval wilson_interval(std::int64_t hits, std::int64_t trials) {
  check(hits >= 0 && hits <= trials, "wilson_interval: hits: expected 0 to ", trials, ", got ", hits);
  if (trials == 0) return {};
  constexpr double z = 1.959963984540054;  // of the normal distribution 95 % lie within
  const auto n = static_cast<double>(trials);
  const double rate = static_cast<double>(hits) / n;
  const double middle = (rate + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z / (1 + z * z / n) * std::sqrt(rate * (1 - rate) / n + z * z / (4 * n * n));
  return {hits == 0 ? 0 : std::max(0.0, middle - half), hits == trials ? 1 : std::min(1.0, middle + half)};
}

SpriteScores added(const SpriteScores& a, const SpriteScores& b) {
  SpriteScores sum = a;
  sum.clips += b.clips, sum.kinds += b.kinds, sum.hues += b.hues, sum.directions += b.directions;
  sum.kinds_and_hues += b.kinds_and_hues;
  sum.found += b.found, sum.fitting += b.fitting, sum.misfits += b.misfits;
  sum.worst_misfit = std::max(a.worst_misfit, b.worst_misfit);
  return sum;
}

ScoreTable::ScoreTable(std::vector<std::string> splits, std::vector<std::int64_t> lengths)
    : splits_(std::move(splits)),
      lengths_(std::move(lengths)),
      scores_(splits_.size(), std::vector<SpriteScores>(lengths_.size())) {}

void ScoreTable::add(std::size_t length, std::span<const SpriteQuestion> questions,
                     std::span<const SpriteAgreement> agreements) {
  check(length < lengths_.size() && questions.size() == agreements.size(),
        "ScoreTable: expected an answer to each of ", questions.size(), " questions, got ",
        agreements.size());
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const std::string& name = sprite_splits()[static_cast<std::size_t>(questions[i].split)];
    const auto found = std::ranges::find(splits_, name);
    check(found != splits_.end(), "ScoreTable: expected a question of its splits, got one of ", name);
    scores_[static_cast<std::size_t>(found - splits_.begin())][length].add(agreements[i]);
  }
}

SpriteScores ScoreTable::over_lengths(std::size_t split) const {
  SpriteScores sum;
  for (const SpriteScores& scores : scores_[split]) sum = added(sum, scores);
  return sum;
}

SpriteScores ScoreTable::over_splits(std::size_t length) const {
  SpriteScores sum;
  for (const std::vector<SpriteScores>& of_split : scores_) sum = added(sum, of_split[length]);
  return sum;
}

SpriteScores ScoreTable::over_all() const {
  SpriteScores sum;
  for (std::size_t split = 0; split < splits_.size(); ++split) sum = added(sum, over_lengths(split));
  return sum;
}

}  // namespace pom::eval
