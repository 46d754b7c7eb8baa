// What judges measure: names that tests use, words for tables, and values.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pom::cli::experiment {

struct Metric {
  std::string name, title;
  bool percent = false;  // a share, shown in percent
  int digits = 2;        // after the point
  bool higher = false;   // is better; else lower
};

// By the order of their columns; the last is the loss that a training ends with.
std::vector<Metric> metrics_of(std::string_view judge);
const Metric& metric_named(const std::vector<Metric>& metrics, std::string_view name);

// "93.20 %", "12.41"; "—" of what is not a number.
std::string metric_text(const Metric& metric, double value);
// "93.20 ± 1.10": a mean and half of its interval; of an interval without end the mean alone.
std::string mean_text(const Metric& metric, double mean, double half);

using Scores = std::vector<std::pair<std::string, double>>;
double score_named(const Scores& scores, std::string_view name);  // not a number where it is missing

}  // namespace pom::cli::experiment
