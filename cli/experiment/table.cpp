#include "cli/experiment/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "cli/json.h"
#include "cli/values.h"
#include "pom/base/build_info.h"
#include "pom/base/error.h"

namespace pom::cli::experiment {
namespace {

// Characters, not bytes: "±" is one.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string number_text(const char* format, double value) {
  if (!std::isfinite(value)) return "—";
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// What the paper has for a row, one text a column.
std::vector<std::string> paper_cells(const File& file, const std::string& row) {
  std::vector<std::string> cells;
  for (const std::string& entry : file.paper) {
    if (!entry.starts_with(row + ":")) continue;
    std::istringstream words(entry.substr(row.size() + 1));
    for (std::string word; words >> word;) cells.push_back(word);
  }
  cells.resize(file.paper_columns.size(), "—");
  return cells;
}

std::string incomplete_text(const Results& results) {
  if (results.complete()) return {};
  return detail::concat("\n**Not complete: ", results.done, " of ", results.all, " are done.**\n");
}

std::string heading(const Plan& plan, const Results& results) {
  const File& file = plan.file();
  const JudgeConfig& judge = file.judge;
  std::string text = detail::concat("# ", file.title.empty() ? plan.experiment.name : file.title,
                                    plan.experiment.quick ? " (quick)" : "", "\n\n", file.about, "\n\n");
  if (!file.claim.empty()) text += detail::concat("The paper: ", file.claim, "\n\n");
  if (file.timed())
    return text + detail::concat(file.seeds.size(),
                                 " repetitions of each row, in turns; ± is half of the 95 % ",
                                 "interval of their mean (Student's t). Timed on ", results.device, ".\n",
                                 incomplete_text(results), "\n");
  text += detail::concat(plan.trainings(), " trainings, seeds");
  for (const std::int64_t seed : file.seeds) text += detail::concat(" ", seed);
  text += detail::concat("; the judge of ", judge.kind, " (seed ", judge.seed, ") looks at ", judge.count,
                         " samples of each, with the same noise and questions for all rows of a seed");
  text += detail::concat(", and at ", judge.reference, " drawings");
  text += ". ± is half of the 95 % interval of the mean over seeds (Student's t).\n";
  if (!results.device.empty()) text += detail::concat("Seconds are those of ", results.device, ".\n");
  return text + incomplete_text(results) + "\n";
}

std::vector<std::string> floor_cells(const Results& results, std::size_t columns) {
  std::vector<std::string> cells = {"drawings", "", "", "", ""};
  for (const Metric& metric : results.metrics)
    cells.push_back(metric_text(metric, score_named(results.floor, metric.name)));
  cells.resize(columns);
  return cells;
}

std::string means_table(const Plan& plan, const Results& results) {
  const File& file = plan.file();
  const bool timed = file.timed();
  std::vector<std::string> head = {"", "n"};
  if (!timed) head = {"", "parameters", "MACs", "steps", "n"};
  for (const Metric& metric : results.metrics) head.push_back(metric.title);
  for (const std::string& name : file.paper_columns) head.push_back("paper: " + name);
  MarkdownTable table(head);
  for (const RowResult& row : results.rows) {
    std::vector<std::string> cells = {row.name};
    if (!timed) {
      const std::string steps = row.steps > 0 ? std::to_string(row.steps) : "—";
      cells.insert(cells.end(), {amount_text(row.parameters), amount_text(row.macs), steps});
    }
    cells.push_back(std::to_string(row.runs.size()));
    for (const Metric& metric : results.metrics) {
      const auto mean = row.mean(metric.name);
      cells.push_back(mean ? mean_text(metric, mean->mean, mean->high - mean->mean) : "—");
    }
    for (const std::string& cell : paper_cells(file, row.name)) cells.push_back(cell);
    table.add(cells);
  }
  if (!timed) table.add(floor_cells(results, head.size()));
  return table.text();
}

// Drawings, and drawings that are spoilt, in the columns that drawings have.
std::string doses_text(const Results& results) {
  if (results.doses.empty()) return {};
  std::vector<Metric> metrics;
  std::vector<std::string> head = {""};
  for (const Metric& metric : results.metrics) {
    if (!std::isfinite(score_named(results.floor, metric.name))) continue;
    metrics.push_back(metric), head.push_back(metric.title);
  }
  MarkdownTable table(head);
  const auto add = [&](const std::string& name, const Scores& scores) {
    std::vector<std::string> cells = {name};
    for (const Metric& metric : metrics)
      cells.push_back(metric_text(metric, score_named(scores, metric.name)));
    table.add(cells);
  };
  add("drawings", results.floor);
  for (const auto& [name, scores] : results.doses) add(name, scores);
  return "\n## What spoilt drawings score\n\nFor a scale: a column that does not move in a row is blind to "
         "that.\n\n" +
         table.text();
}

std::string seeds_table(const Results& results) {
  std::vector<std::string> head = {"", "seed"};
  for (const Metric& metric : results.metrics) head.push_back(metric.title);
  MarkdownTable table(head);
  for (const RowResult& row : results.rows)
    for (const auto& [seed, scores] : row.runs) {
      std::vector<std::string> cells = {row.name, std::to_string(seed)};
      for (const Metric& metric : results.metrics)
        cells.push_back(metric_text(metric, score_named(scores, metric.name)));
      table.add(cells);
    }
  return table.text();
}

std::string outcome_text(const Finding& finding) {
  return !finding.known ? "not known" : finding.holds ? "holds" : "does not hold";
}

std::string tests_table(const Results& results) {
  MarkdownTable table({"stated before", "n", "found", "p", "p (Holm)", "outcome"});
  for (const Finding& finding : results.findings)
    table.add({finding.test.text, std::to_string(finding.count), finding.known ? finding.text : "—",
               number_text("%.3g", finding.p), number_text("%.3g", finding.adjusted), outcome_text(finding)});
  return table.text();
}

std::string fits_text(const Results& results) {
  std::string text;
  for (const ScalingFit& fit : results.fits) {
    char line[512];
    std::snprintf(line, sizeof line, "%s = %.4g %+.4g ln(MACs), R² %.3f; = %.4g + %.4g MACs^-%.3g, R² %.3f",
                  fit.metric.c_str(), fit.log.intercept, fit.log.slope, fit.log.r2, fit.power.floor,
                  fit.power.scale, fit.power.exponent, fit.power.r2);
    text += line;
    std::snprintf(line, sizeof line, "; slope %.4g to %.4g, exponent %.3g to %.3g (95 %%, runs drawn again)",
                  fit.slope.low, fit.slope.high, fit.exponent.low, fit.exponent.high);
    text += (fit.seeds < 2 ? std::string() : line) + std::string(".\n");
  }
  return text.empty() ? text : "\nFits of the means: " + text;
}

std::string remarks(const Plan& plan, const Results& results) {
  std::string text;
  if (!results.swept.empty()) {
    text += detail::concat("\nChosen by each arm (", plan.file().sweep.field,
                           ", on other seeds and by another judge):");
    for (const auto& [arm, value] : results.swept) text += detail::concat(" ", arm, " ", value, ";");
    text.back() = '.';
    text += "\n";
  }
  if (!results.rankings.empty()) {
    text += detail::concat("\nOrders of the rows from best to worst, Kendall's tau with that by ",
                           results.metrics.front().title, ":");
    for (const auto& [name, tau] : results.rankings)
      text +=
          detail::concat(" ", metric_named(results.metrics, name).title, " ", number_text("%+.2f", tau), ";");
    text.back() = '.';
    text += "\n";
  }
  if (!plan.file().larger.empty()) text += detail::concat("\n", plan.file().larger, "\n");
  return text;
}

JsonObject row_json(const RowResult& row, const std::vector<Metric>& metrics) {
  std::vector<JsonObject> runs;
  for (const auto& [seed, scores] : row.runs) {
    JsonObject& run = runs.emplace_back(JsonObject().add("seed", seed));
    for (const auto& [name, value] : scores) run.add(name, value);
  }
  JsonObject means;
  for (const Metric& metric : metrics)
    if (const auto mean = row.mean(metric.name))
      means.add(metric.name, JsonObject()
                                 .add("mean", mean->mean)
                                 .add("low", mean->low)
                                 .add("high", mean->high)
                                 .add("n", mean->count));
  return JsonObject()
      .add("name", row.name)
      .add("parameters", row.parameters)
      .add("macs", row.macs)
      .add("steps", row.steps)
      .add("means", means)
      .add("runs", runs);
}

JsonObject finding_json(const Finding& finding) {
  return JsonObject()
      .add("test", finding.test.text)
      .add("n", finding.count)
      .add("known", finding.known)
      .add("holds", finding.holds)
      .add("difference", finding.difference.mean)
      .add("low", finding.difference.low)
      .add("high", finding.difference.high)
      .add("p", finding.p)
      .add("p_holm", finding.adjusted);
}

}  // namespace

std::string MarkdownTable::text() const {
  std::vector<std::size_t> widths(rows_.front().size(), 3);
  for (const std::vector<std::string>& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths.at(i) = std::max(widths[i], width_of(row[i]));
  std::string text;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::string padding(widths[i] - width_of(rows_[r][i]), ' ');
      text += i == 0 ? "| " + rows_[r][i] + padding : " | " + padding + rows_[r][i];
    }
    text += " |\n";
    if (r > 0) continue;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text.append("|").append(widths[i] + 1, '-');
      text += i == 0 ? '-' : ':';
    }
    text += "|\n";
  }
  return text;
}

std::string table_text(const Plan& plan, const Results& results) {
  return heading(plan, results) + means_table(plan, results) + "\n## Tests\n\n" + tests_table(results) +
         fits_text(results) + "\n**" + results.verdict + "**\n" + remarks(plan, results) +
         doses_text(results) + "\n## Every run\n\n" + seeds_table(results);
}

std::string results_json(const Plan& plan, const Results& results) {
  std::vector<JsonObject> rows, findings;
  for (const RowResult& row : results.rows) rows.push_back(row_json(row, results.metrics));
  for (const Finding& finding : results.findings) findings.push_back(finding_json(finding));
  JsonObject floor, swept, doses;
  const auto scores_json = [](const Scores& scores) {
    JsonObject values;
    for (const auto& [name, value] : scores) values.add(name, value);
    return values;
  };
  floor = scores_json(results.floor);
  for (const auto& [name, scores] : results.doses) doses.add(name, scores_json(scores));
  for (const auto& [arm, value] : results.swept) swept.add(arm, value);
  JsonObject json;
  json.add("experiment", plan.experiment.name).add("quick", plan.experiment.quick);
  if (!results.device.empty()) json.add("device", results.device);
  return json.add("version", build_info().version)
      .add("complete", results.complete())
      .add("done", results.done)
      .add("all", results.all)
      .add("rows", rows)
      .add("drawings", floor)
      .add("spoilt_drawings", doses)
      .add("swept", swept)
      .add("tests", findings)
      .add("verdict", results.verdict)
      .text();
}

}  // namespace pom::cli::experiment
