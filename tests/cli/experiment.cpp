// Tests of what an experiment's file means and of what its results say, on results that are made up.
#include <cmath>
#include <gtest/gtest.h>

#include "cli/experiment/analysis.h"
#include "cli/experiment/table.h"

namespace pom::cli::experiment {
namespace {

Experiment small_experiment(std::vector<std::string> arms, std::vector<std::string> tests,
                            std::vector<std::string> points = {}, std::string axis = "") {
  Experiment experiment{.name = "made-up", .file = {}};
  experiment.file.arms = std::move(arms);
  experiment.file.tests = std::move(tests);
  experiment.file.points = std::move(points);
  experiment.file.axis = std::move(axis);
  experiment.file.seeds = {1, 2, 3, 4, 5};
  experiment.recipe = {"data.size=[16, 16]", "network.dim=32", "network.depth=2"};
  return experiment;
}

// As if these values of a metric had been found, by row and seed.
Results analysed(const Plan& plan, const std::vector<std::vector<double>>& values,
                 const std::string& metric = "frechet") {
  Results results;
  results.metrics = metrics_of("shapes");
  for (std::size_t r = 0; r < plan.rows.size(); ++r) {
    RowResult& row = results.rows.emplace_back();
    row.name = plan.rows[r].name;
    row.x = plan.file().axis == "macs" ? macs_of(recipe_of(plan, plan.arms[plan.rows[r].arm], 1))
                                       : std::atof(row.name.c_str());
    for (std::size_t s = 0; s < values[r].size(); ++s)
      row.runs[plan.file().seeds[s]] = {{metric, values[r][s]}};
    results.done += std::ssize(values[r]), results.all += std::ssize(plan.file().seeds);
  }
  analyse(plan, results);
  return results;
}

const std::vector<std::string> two_arms = {"one: network.order=1", "two: network.order=2"};

TEST(Experiment, AnArmChangesTheRecipe) {
  const Plan plan =
      make_plan(small_experiment({"a: network.order=3 data.size=[8,8] sample.size=[16,16]", "b:"}, {}));
  const train::Recipe recipe = recipe_of(plan, plan.arms[0], 4, {"optimizer.lr=0.5"});
  EXPECT_EQ(recipe.network.order, 3);
  EXPECT_EQ(recipe.network.dim, 32);
  EXPECT_EQ(recipe.data.size, (std::vector<std::int64_t>{8, 8}));
  EXPECT_EQ(recipe.run.seed, 4);
  EXPECT_EQ(recipe.optimizer.lr, 0.5);
  EXPECT_EQ(plan.trainings(), 10);
}

TEST(Experiment, JudgedArmsHaveOneSize) {
  EXPECT_THROW(make_plan(small_experiment({"a: data.size=[8,8]", "b:"}, {})), Error);
  EXPECT_NO_THROW(make_plan(small_experiment({"a: data.size=[8,8] judged=no", "b: from=a"}, {})));
}

TEST(Experiment, RowsAreArmsOrPointsOrBoth) {
  const auto names = [](const Experiment& experiment) {
    std::vector<std::string> all;
    for (const Row& row : make_plan(experiment).rows) all.push_back(row.name);
    return all;
  };
  const std::vector<std::string> points = {"0: omega=0", "2: omega=2"};
  EXPECT_EQ(names(small_experiment(two_arms, {})), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(names(small_experiment({"a:"}, {}, points)), (std::vector<std::string>{"0", "2"}));
  EXPECT_EQ(names(small_experiment(two_arms, {}, points)),
            (std::vector<std::string>{"one/0", "one/2", "two/0", "two/2"}));
}

// The values of tests/eval/comparisons.cpp: p is 0.0109, twice that with two tests.
TEST(Experiment, DifferencesAreCorrectedForAskingTwice) {
  const std::vector<double> a = {90.1, 88.7, 91.3, 89.9, 90.4}, b = {87.0, 87.9, 88.2, 86.1, 88.8};
  const Plan plan = make_plan(small_experiment(two_arms, {"frechet: one > two", "frechet: one < two"}));
  const Results results = analysed(plan, {a, b});
  EXPECT_NEAR(results.findings[0].p, 0.010925649193035845, 1e-12);
  EXPECT_NEAR(results.findings[0].adjusted, 0.02185129838607169, 1e-12);
  EXPECT_TRUE(results.findings[0].holds);
  EXPECT_FALSE(results.findings[1].holds);  // as sure, and the other way
  EXPECT_NE(results.verdict.find("1 of 2 tests did not come out as stated (frechet: one < two)"),
            std::string::npos);
}

TEST(Experiment, MarginsAreSharesOfTheOther) {
  const std::vector<double> a = {90.1, 88.7, 91.3, 89.9, 90.4}, b = {87.0, 87.9, 88.2, 86.1, 88.8};
  const Plan plan = make_plan(small_experiment(
      two_arms,
      {"frechet: one = two within 5 %", "frechet: one = two within 2 %", "frechet: two <= one within 1 %",
       "frechet: one <= two within 1 %", "frechet: one >= two within 1 %"}));
  const Results results = analysed(plan, {a, b});
  const std::vector<bool> expected = {true, false, true, false, true};
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(results.findings[i].holds, expected[i]) << results.findings[i].test.text;
}

TEST(Experiment, TrendsAgainstMultiplyAdds) {
  const Plan plan =
      make_plan(small_experiment({"s: network.dim=16", "m: network.dim=32", "l: network.dim=64"},
                                 {"frechet: falls", "frechet: rises"}, {}, "macs"));
  const Results results = analysed(plan, {{30, 31, 32}, {20, 22, 21}, {11, 10, 12}});
  EXPECT_TRUE(results.findings[0].holds);
  EXPECT_FALSE(results.findings[1].holds);
  ASSERT_FALSE(results.fits.empty());
  EXPECT_LT(results.fits[0].log.slope, 0);
  EXPECT_LE(results.fits[0].slope.low, results.fits[0].log.slope);
  EXPECT_GE(results.fits[0].slope.high, results.fits[0].log.slope);
}

// The best point of a seed is chosen on the others: noise alone does not make one.
TEST(Experiment, LowestInside) {
  const Plan plan = make_plan(small_experiment({"a:"}, {"frechet: lowest inside"},
                                               {"0: omega=0", "1: omega=1", "6: omega=6"}, "point"));
  const Results valley = analysed(plan, {{9, 9.5, 9.2}, {5, 5.2, 5.1}, {8, 8.4, 7.9}});
  EXPECT_TRUE(valley.findings[0].holds);
  const Results slope = analysed(plan, {{9, 9.5, 9.2}, {8, 8.2, 8.1}, {5, 5.4, 5.2}});
  EXPECT_FALSE(slope.findings[0].holds);
  const Results noise = analysed(plan, {{1, 5, 5}, {5, 1, 5}, {5, 5, 1}});
  EXPECT_FALSE(noise.findings[0].holds);
}

TEST(Experiment, RunsThatAreMissing) {
  const Plan plan = make_plan(small_experiment(two_arms, {"frechet: one > two"}));
  const Results results = analysed(plan, {{1, 2, 3}, {1}});
  EXPECT_FALSE(results.findings[0].known);
  EXPECT_EQ(results.findings[0].count, 1);
  EXPECT_NE(results.verdict.find("Not known yet"), std::string::npos);
  const std::string table = table_text(plan, results);
  EXPECT_NE(table.find("Not complete: 4 of 10"), std::string::npos);
  EXPECT_EQ(table.find("nan"), std::string::npos);
}

TEST(Experiment, TablesCountCharacters) {
  MarkdownTable table({"", "value"});
  table.add({"a", "1 ± 2"});
  EXPECT_EQ(table.text(), "|     | value |\n|-----|------:|\n| a   | 1 ± 2 |\n");
}

}  // namespace
}  // namespace pom::cli::experiment
