// How often pictures of scenes show what they should, by split.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "pom/eval/scenes_eval.h"
#include "pom/eval/sprites_report.h"

namespace pom::eval {

// How often verdicts agreed.
struct SceneScores {
  std::int64_t pictures = 0;
  std::int64_t objects = 0, colours = 0, pairs = 0, relations = 0, counts = 0, everything = 0;
  std::int64_t relations_asked = 0;             // captions that say any: `relations` are of these
  std::int64_t grounds_asked = 0, grounds = 0;  // captions that name one, and those that are right
  std::int64_t fitting = 0;                     // pictures in which nothing fits nothing
  std::int64_t found = 0, blobs = 0;            // objects, and those that are none of the shapes
  double misfits = 0, worst_misfit = 0;         // of all objects, added up; the largest
  double residues = 0, worst_residue = 0;       // of all pictures, likewise
  std::int64_t read_alike = 0, read_twice = 0;  // pictures that both judges saw, and read alike

  void add(const SceneQuestion& question, const SceneVerdict& verdict);
  double mean_misfit() const {  // not a number where nothing was found
    return found > 0 ? misfits / static_cast<double>(found) : std::numeric_limits<double>::quiet_NaN();
  }
  double mean_residue() const { return pictures > 0 ? residues / static_cast<double>(pictures) : 0; }
};

SceneScores added(const SceneScores& a, const SceneScores& b);

// The scores of some splits.
class SceneTable {
 public:
  explicit SceneTable(std::vector<std::string> splits)
      : splits_(std::move(splits)), scores_(splits_.size()) {}

  void add(std::span<const SceneQuestion> questions, std::span<const SceneVerdict> verdicts);
  // What the other judge says of the same pictures: whether it reads them alike.
  void add_readings(std::span<const SceneQuestion> questions, const std::vector<bool>& alike);

  const std::vector<std::string>& splits() const { return splits_; }
  const SceneScores& at(std::size_t split) const { return scores_[split]; }
  SceneScores over_all() const;

 private:
  SceneScores& of(const SceneQuestion& question);

  std::vector<std::string> splits_;
  std::vector<SceneScores> scores_;
};

}  // namespace pom::eval
