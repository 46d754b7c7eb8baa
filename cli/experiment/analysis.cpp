#include "cli/experiment/analysis.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "pom/base/error.h"

namespace pom::cli::experiment {
namespace {

constexpr double level = 0.05, no_number = std::numeric_limits<double>::quiet_NaN();
using Kind = Test::Kind;

std::string signed_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%+.4g", value);
  return text;
}

std::string interval_text(const eval::MeanInterval& mean, const char* confidence) {
  if (!std::isfinite(mean.low)) return signed_number(mean.mean) + " (one seed)";
  return detail::concat(signed_number(mean.mean), " (", confidence, ": ", signed_number(mean.low), " to ",
                        signed_number(mean.high), ")");
}

// Values of two rows for the seeds that both have.
struct Pair {
  std::vector<double> a, b;
};
Pair pair_of(const RowResult& one, const RowResult& other, const std::string& metric) {
  const std::map<std::int64_t, double> first = one.values(metric), second = other.values(metric);
  Pair pair;
  for (const auto& [seed, value] : first)
    if (const auto found = second.find(seed); found != second.end())
      pair.a.push_back(value), pair.b.push_back(found->second);
  return pair;
}

Pair beside_constant(const RowResult& row, double constant, const std::string& metric) {
  Pair pair;
  for (const auto& [seed, value] : row.values(metric)) pair.a.push_back(value), pair.b.push_back(constant);
  return pair;
}

// By seed, the values of all rows, of the seeds that have every row.
std::map<std::int64_t, std::vector<double>> by_seed(const Results& results, const std::string& metric) {
  std::map<std::int64_t, std::vector<double>> all;
  for (const RowResult& row : results.rows)
    for (const auto& [seed, value] : row.values(metric)) all[seed].push_back(value);
  std::erase_if(all, [&](const auto& entry) { return entry.second.size() != results.rows.size(); });
  return all;
}

std::vector<double> axis_of(const Results& results) {
  std::vector<double> x;
  for (const RowResult& row : results.rows) x.push_back(row.x);
  return x;
}

// Of A - factor * B for each seed: the factor is stated, so that nothing of the margin comes from the data.
struct Contrast {
  double below = no_number, above = no_number;  // p that its mean is below 0, and above
  std::string text;
};
Contrast contrast_of(const Pair& pair, double factor, const Test& test) {
  std::vector<double> scaled = pair.b;
  for (double& value : scaled) value *= factor;
  const eval::Equivalence below = eval::not_above(pair.a, scaled, 0);
  char name[32];
  std::snprintf(name, sizeof name, " less %.6g × ", factor);
  return {.below = below.p,
          .above = eval::not_above(scaled, pair.a, 0).p,
          .text = test.a + name + test.b + ": " + interval_text(below.difference, "90 %")};
}

// A share of B has no meaning where B is not above 0.
void test_margin(const Pair& pair, Finding& finding) {
  if (eval::t_interval(pair.b).mean <= 0) return;
  const Test& test = finding.test;
  const Contrast upper = contrast_of(pair, 1 + test.margin, test),
                 lower = contrast_of(pair, 1 - test.margin, test);
  const bool within = test.kind == Kind::within, low_only = test.kind == Kind::not_below;
  finding.p = within ? std::max(upper.below, lower.above) : low_only ? lower.above : upper.below;
  finding.adjusted = finding.p;
  finding.difference = eval::not_above(pair.a, pair.b, 0).difference;  // with its 90 % interval
  finding.known = !std::isnan(finding.p);
  finding.holds = finding.known && finding.p < level;
  finding.text = within ? upper.text + "; " + lower.text : low_only ? lower.text : upper.text;
}

void test_difference(const Plan& plan, const Results& results, Finding& finding) {
  const RowResult& a = results.rows[plan.row_named(finding.test.a)];
  const Pair pair = finding.test.constant
                        ? beside_constant(a, *finding.test.constant, finding.test.metric)
                        : pair_of(a, results.rows[plan.row_named(finding.test.b)], finding.test.metric);
  finding.count = std::ssize(pair.a);
  if (pair.a.size() < 2) return;
  if (finding.test.margin > 0) return test_margin(pair, finding);
  const eval::PairedTest result = eval::paired_t(pair.a, pair.b);
  finding.difference = result.difference, finding.p = result.p;
  finding.known = !std::isnan(result.p);
  finding.text = interval_text(result.difference, "95 %");
}

// Of each seed one number, whose mean must be on one side of 0.
void test_trend(const Plan& plan, const Results& results, Finding& finding) {
  const std::vector<double> x = axis_of(results);
  std::vector<double> trends;
  for (const auto& [seed, values] : by_seed(results, finding.test.metric)) {
    const double trend =
        plan.file().axis == "macs" ? eval::fit_log(x, values).slope : eval::kendall_tau(x, values);
    if (!std::isnan(trend)) trends.push_back(trend);
  }
  finding.count = std::ssize(trends);
  if (trends.size() < 2) return;
  finding.known = true;
  finding.difference = eval::t_interval(trends);
  finding.holds = finding.test.kind == Kind::falls ? finding.difference.high < 0 : finding.difference.low > 0;
  finding.text = detail::concat(plan.file().axis == "macs" ? "slope in ln MACs " : "Kendall's tau ",
                                interval_text(finding.difference, "95 %"));
}

// The best row of a seed is the one that is best on the others, so that choosing it is not part of the gain.
void test_inside(const Results& results, Finding& finding) {
  const std::map<std::int64_t, std::vector<double>> all = by_seed(results, finding.test.metric);
  finding.count = std::ssize(all);
  if (all.size() < 2 || results.rows.size() < 3) return;
  std::vector<double> to_first, to_last;
  for (const auto& [seed, values] : all) {
    std::vector<double> others(values.size());
    for (const auto& [other, theirs] : all)
      for (std::size_t i = 0; other != seed && i < theirs.size(); ++i) others[i] += theirs[i];
    const auto best = static_cast<std::size_t>(std::ranges::min_element(others) - others.begin());
    to_first.push_back(values[best] - values.front()), to_last.push_back(values[best] - values.back());
  }
  const eval::MeanInterval first = eval::t_interval(to_first), last = eval::t_interval(to_last);
  finding.known = true;
  finding.difference = first.high > last.high ? first : last;
  finding.holds = first.high < 0 && last.high < 0;
  finding.text = detail::concat("best less ", results.rows.front().name, ": ", interval_text(first, "95 %"),
                                "; less ", results.rows.back().name, ": ", interval_text(last, "95 %"));
}

// All differences were asked about at once.
void correct(std::vector<Finding>& findings) {
  std::vector<Finding*> differences;
  std::vector<double> p;
  for (Finding& finding : findings)
    if (finding.test.kind == Kind::above || finding.test.kind == Kind::below)
      differences.push_back(&finding), p.push_back(finding.p);
  const std::vector<double> adjusted = eval::holm(p);
  for (std::size_t i = 0; i < differences.size(); ++i) {
    Finding& finding = *differences[i];
    finding.adjusted = adjusted[i];
    const bool side =
        finding.test.kind == Kind::above ? finding.difference.mean > 0 : finding.difference.mean < 0;
    finding.holds = finding.known && adjusted[i] < level && side;
  }
}

void fit_rows(const Plan& plan, Results& results) {
  if (plan.file().axis != "macs" || results.rows.size() < 3) return;
  const std::vector<double> x = axis_of(results);
  for (const Test& test : plan.tests) {
    if (test.kind != Kind::falls && test.kind != Kind::rises) continue;
    std::vector<std::vector<double>> runs;
    std::vector<double> means;
    std::size_t seeds = std::numeric_limits<std::size_t>::max();
    for (const RowResult& row : results.rows) {
      std::vector<double> values;
      for (const auto& [seed, value] : row.values(test.metric)) values.push_back(value);
      if (values.empty()) return;
      means.push_back(eval::t_interval(values).mean);
      seeds = std::min(seeds, values.size());
      runs.push_back(std::move(values));
    }
    const auto slope = [&](std::span<const double> y) { return eval::fit_log(x, y).slope; };
    const auto exponent = [&](std::span<const double> y) { return eval::fit_power(x, y).exponent; };
    results.fits.push_back({test.metric, static_cast<std::int64_t>(seeds), eval::fit_log(x, means),
                            eval::fit_power(x, means), eval::resample(runs, slope),
                            eval::resample(runs, exponent, 500)});
  }
}

// How alike the orders are, from best to worst, in which two metrics put the rows: each with the first one.
void rank_rows(Results& results) {
  if (results.rows.size() < 3 || results.metrics.size() < 2) return;
  const auto means = [&](const std::string& metric) {
    std::vector<double> all;
    for (const RowResult& row : results.rows)
      if (const auto mean = row.mean(metric)) all.push_back(mean->mean);
    return all;
  };
  const std::vector<double> first = means(results.metrics.front().name);
  if (first.size() != results.rows.size()) return;
  for (std::size_t i = 1; i < results.metrics.size(); ++i) {
    const std::vector<double> other = means(results.metrics[i].name);
    if (other.size() != first.size()) continue;
    const double sign = results.metrics[i].higher == results.metrics.front().higher ? 1 : -1;
    if (const double tau = sign * eval::kendall_tau(first, other); !std::isnan(tau))
      results.rankings.emplace_back(results.metrics[i].name, tau);
  }
}

std::string verdict_of(const Plan& plan, const Results& results) {
  std::string failed;
  std::int64_t unknown = 0, held = 0;
  for (const Finding& finding : results.findings) {
    unknown += !finding.known, held += finding.holds;
    if (finding.known && !finding.holds)
      failed += detail::concat(failed.empty() ? "" : "; ", finding.test.text);
  }
  const std::int64_t all = std::ssize(results.findings);
  if (plan.experiment.quick)
    return detail::concat("A quick run: every part works, and nothing is said about the claim (", held,
                          " of ", all, " tests came out as stated).");
  if (all == 0) return "No test was stated.";
  if (unknown > 0 && !results.complete())
    return detail::concat("Not known yet: ", unknown, " of ", all, " tests lack runs (", results.done, " of ",
                          results.all, " are done).");
  if (unknown > 0)
    return detail::concat("Not decided: ", unknown, " of ", all,
                          " tests cannot be made, for want of seeds or of any difference.");
  if (held == all) return detail::concat("The shape is the paper's: all ", all, " tests came out as stated.");
  return detail::concat("The paper's shape was not found: ", all - held, " of ", all,
                        " tests did not come out as stated (", failed, ").");
}

}  // namespace

void analyse(const Plan& plan, Results& results) {
  for (const Test& test : plan.tests) {
    Finding finding{.test = test, .p = no_number, .adjusted = no_number};
    if (test.kind == Kind::falls || test.kind == Kind::rises)
      test_trend(plan, results, finding);
    else if (test.kind == Kind::inside)
      test_inside(results, finding);
    else
      test_difference(plan, results, finding);
    results.findings.push_back(std::move(finding));
  }
  correct(results.findings);
  fit_rows(plan, results);
  rank_rows(results);
  results.verdict = verdict_of(plan, results);
}

}  // namespace pom::cli::experiment
