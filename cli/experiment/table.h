// The results for people, as Markdown that is read on a terminal too, and for programs, as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/experiment/analysis.h"

namespace pom::cli::experiment {

// Rows of texts under a head, columns as wide as they need.
class MarkdownTable {
 public:
  explicit MarkdownTable(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string table_text(const Plan& plan, const Results& results);
std::string results_json(const Plan& plan, const Results& results);

}  // namespace pom::cli::experiment
