// What the results say: means with intervals, and the tests that were stated before. Pure computation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/experiment/folder.h"
#include "cli/experiment/plan.h"
#include "pom/eval/comparisons.h"
#include "pom/eval/fits.h"

namespace pom::cli::experiment {

// A row of the table with every run of it.
struct RowResult {
  std::string name;
  double parameters = 0, macs = 0;
  std::int64_t steps = 0;                    // 0: not known yet
  double x = 0;                              // on the axis
  std::map<std::int64_t, Scores> runs = {};  // by seed

  // Of the seeds that have this metric.
  std::map<std::int64_t, double> values(const std::string& metric) const;
  std::optional<eval::MeanInterval> mean(const std::string& metric) const;
};

struct Finding {
  Test test;
  bool known = false;  // enough runs are done
  bool holds = false;
  std::int64_t count = 0;              // seeds
  eval::MeanInterval difference = {};  // or slope, or tau; of "lowest inside" to the nearer end
  double p = 0, adjusted = 0;          // not a number where there is none
  std::string text = {};               // in words
};

// Of the means against the axis, where that is multiply-adds.
struct ScalingFit {
  std::string metric;
  std::int64_t seeds = 0;  // of the row that has fewest
  eval::LogFit log;
  eval::PowerFit power;
  eval::Resampled slope, exponent;  // say nothing below two seeds
};

struct Results {
  std::vector<Metric> metrics;  // columns
  std::vector<RowResult> rows;
  Scores floor;
  std::vector<std::pair<std::string, Scores>> doses;  // of drawings that were spoilt
  std::string device;                                 // where it was timed, if anything is
  std::vector<Finding> findings;
  std::vector<ScalingFit> fits;
  std::vector<std::pair<std::string, double>> rankings;  // Kendall's tau between metrics' orders of the rows
  std::map<std::string, std::string> swept;              // what arms chose
  std::int64_t done = 0, all = 0;                        // of the runs to be judged
  std::string verdict;                                   // whether the shape is the paper's, in a sentence

  bool complete() const { return done == all; }
};

// From the files of the folder alone.
Results collect(const Plan& plan, const Folder& folder);
// Findings, fits and verdict of the rows.
void analyse(const Plan& plan, Results& results);

}  // namespace pom::cli::experiment
