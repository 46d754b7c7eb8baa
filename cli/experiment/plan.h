// What an experiment consists of: arms, ways of sampling, rows of its table, and the tests that decide.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/experiment/file.h"
#include "pom/generate/request.h"
#include "pom/train/recipe.h"

namespace pom::cli::experiment {

// "NAME: network.order=1 from=small": what is no field of a recipe is one of these.
struct Arm {
  std::string name;
  std::vector<std::string> sets = {};
  std::string from = {};   // arm of the same seed whose weights it starts with
  std::string model = {};  // arm of the same seed whose model it is, without a training of its own
  std::string sweep = {};  // arm whose choice of the sweep it takes; else its own
  bool judged = true;
  std::string equal = {};                  // "flops" or "seconds" of its training are those of
  std::vector<std::string> equal_to = {};  // these arms together

  bool trains() const { return model.empty(); }
};

struct Point {
  std::string name;
  std::vector<std::string> sets = {};  // of a request
};

// A row of the table: an arm, sampled in one of the ways.
struct Row {
  std::size_t arm = 0, point = 0;
  std::string name;
};

// What was stated before. "A > B": the mean of A is above that of B, by a paired t-test with Holm's
// correction over all of these. "A = B within 10 %": A is below 1.1 B and above 0.9 B, by two one-sided
// tests; "A <= B within 10 %": not worse by more, by one of them. "number 1" may stand for B, where points
// have other names than numbers also 1. "falls", "rises" with the axis: the slope of each seed in the
// logarithm (of points: Kendall's tau) has an interval without 0. "lowest inside": the best point, chosen on
// the other seeds, is below both ends.
struct Test {
  enum class Kind { above, below, within, not_above, not_below, falls, rises, inside };
  Kind kind = Kind::above;
  std::string text, metric, a = {}, b = {};
  std::optional<double> constant = {};  // in place of row b
  double margin = 0;                    // a share of B
};

struct Plan {
  Experiment experiment;
  std::vector<Arm> arms;
  std::vector<Point> points;
  std::vector<Row> rows;
  std::vector<Test> tests;

  const File& file() const { return experiment.file; }
  std::size_t arm_named(const std::string& name) const;  // an error where there is none
  std::size_t row_named(const std::string& name) const;
  std::int64_t trainings() const;  // without those of the sweep
  std::int64_t sweep_trainings() const;
  // Times decide, or say how long arms train: those of two devices are not put together.
  bool keeps_to_one_device() const;
};

// Every mistake in the file is found here.
Plan make_plan(const Experiment& experiment);

// The recipe of an arm, complete; `more` are further assignments, which come last.
train::Recipe recipe_of(const Plan& plan, const Arm& arm, std::int64_t seed,
                        const std::vector<std::string>& more = {});
// How its pictures are sampled: the arm's defaults, changed as the point says.
generate::Request request_of(const Point& point);

// Multiply-adds of one evaluation of the network for one example.
double macs_of(const train::Recipe& recipe);
std::int64_t parameters_of(const train::Recipe& recipe);

}  // namespace pom::cli::experiment
