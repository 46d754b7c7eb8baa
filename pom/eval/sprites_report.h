// How often clips of sprites show what they should, by split, length and window, and how sure that is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pom/eval/sprites_eval.h"

namespace pom::eval {

struct Interval {
  double low = 0, high = 1;
};

// Wilson's interval of a rate, in which the true one lies in 95 of 100 cases; 0 to 1 of no trials.
Interval wilson_interval(std::int64_t hits, std::int64_t trials);

SpriteScores added(const SpriteScores& a, const SpriteScores& b);

// The scores of all splits and lengths.
class ScoreTable {
 public:
  ScoreTable(std::vector<std::string> splits, std::vector<std::int64_t> lengths);

  // One part of each question's clip, of lengths()[length].
  void add(std::size_t length, std::span<const SpriteQuestion> questions,
           std::span<const SpriteAgreement> agreements);

  const std::vector<std::string>& splits() const { return splits_; }
  const std::vector<std::int64_t>& lengths() const { return lengths_; }
  const SpriteScores& at(std::size_t split, std::size_t length) const { return scores_[split][length]; }
  SpriteScores over_lengths(std::size_t split) const;
  SpriteScores over_splits(std::size_t length) const;
  SpriteScores over_all() const;

 private:
  std::vector<std::string> splits_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::vector<SpriteScores>> scores_;  // of a split and a length
};

struct SpritesReport {
  struct OfWindow {
    std::int64_t window = 0;  // blocks; 0: all
    ScoreTable clips;
  };
  ScoreTable drawings;            // of the same scenes: the best that can be had
  std::vector<OfWindow> windows;  // none where no model was asked
};

}  // namespace pom::eval
