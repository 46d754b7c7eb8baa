// Tests of what an experiment's file means and of what its results say, on results that are made up.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <future>
#include <gtest/gtest.h>

#include "cli/command.h"
#include "cli/experiment/analysis.h"
#include "cli/experiment/backlog.h"
#include "cli/experiment/doses.h"
#include "cli/experiment/judge.h"
#include "cli/experiment/runner.h"
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

// scipy.stats.ttest_1samp of a - 1.05 b (below 0) and of a - 0.95 b (above 0).
TEST(Experiment, MarginsDoNotComeFromTheData) {
  const Plan plan = make_plan(
      small_experiment(two_arms, {"frechet: one = two within 5 %", "frechet: one <= two within 5 %",
                                  "frechet: one >= two within 5 %", "frechet: one <= number -1 within 5 %"}));
  const Results results = analysed(plan, {{10.2, 14.1, 8.9, 12.0, 11.1}, {10.0, 14.4, 8.6, 12.3, 10.9}});
  EXPECT_NEAR(results.findings[0].p, 0.019155585853386812, 1e-9);
  EXPECT_NEAR(results.findings[1].p, 0.019155585853386812, 1e-9);
  EXPECT_NEAR(results.findings[2].p, 0.0014381098163693806, 1e-9);
  EXPECT_TRUE(results.findings[0].text.starts_with("one less 1.05 × two: ")) << results.findings[0].text;
  EXPECT_NE(results.findings[0].text.find("; one less 0.95 × two: "), std::string::npos);
  EXPECT_FALSE(results.findings[3].known);  // a share of what is not above 0
}

TEST(Experiment, OrdersOfRowsAreFromBestToWorst) {
  const Plan plan = make_plan(small_experiment({"a:", "b: network.order=1", "c: network.order=3"}, {}));
  Results results;
  results.metrics = metrics_of("shapes");
  for (double i = 0; i < 3; ++i) {
    RowResult& row = results.rows.emplace_back();
    row.name = plan.rows[static_cast<std::size_t>(i)].name;
    row.runs[1] = {{"frechet", 3 - i}, {"recognised", i}, {"frechet_n", 3 - i}, {"validation_loss", i}};
  }
  analyse(plan, results);
  const std::vector<std::pair<std::string, double>> expected = {
      {"frechet_n", 1}, {"recognised", 1}, {"validation_loss", -1}};
  EXPECT_EQ(results.rankings, expected);
}

class ExperimentFolder : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) / "pom-experiment-folder";
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  std::filesystem::path path_;
};

TEST_F(ExperimentFolder, ASweepChoosesWhatIsBetter) {
  const Folder folder(path_);
  const Scores low = {{"frechet", 1}, {"inception", 1}}, high = {{"frechet", 2}, {"inception", 2}};
  Folder::write_judged(folder.sweep_run("a", "0.1", 101), "sweep", low);
  Folder::write_judged(folder.sweep_run("a", "0.2", 101), "sweep", high);
  Folder::write_judged(folder.sweep_run("a", "0.3", 101), "sweep", {{"inception", std::nan("")}});
  const auto chosen = [&](const std::string& metric) {
    Experiment experiment = small_experiment({"a:"}, {});
    SweepConfig& sweep = experiment.file.sweep;
    sweep.field = "optimizer.lr", sweep.values = {"0.1", "0.2", "0.3"}, sweep.seeds = {101};
    sweep.metric = metric;
    const Plan plan = make_plan(experiment);
    return swept_value(plan, folder, plan.arms.front()).value();
  };
  EXPECT_EQ(chosen("frechet"), "0.1");
  EXPECT_EQ(chosen("inception"), "0.2");
}

TEST_F(ExperimentFolder, TimesAreOfOneDevice) {
  const Folder folder(path_);
  EXPECT_FALSE(folder.device());
  folder.keep_to("cuda:0");
  EXPECT_NO_THROW(folder.keep_to("cuda:0"));
  EXPECT_THROW(folder.keep_to("cpu"), UsageError);
  EXPECT_EQ(folder.device(), "cuda:0");
  EXPECT_TRUE(make_plan(small_experiment({"a:", "b: steps=seconds:a"}, {})).keeps_to_one_device());
  EXPECT_FALSE(make_plan(small_experiment({"a:", "b: steps=flops:a"}, {})).keeps_to_one_device());
}

TEST(Experiment, ScenesAreAskedAsTheRecipeDrawsThem) {
  train::Recipe recipe;
  const auto most = [&](std::int64_t objects) {
    recipe.data.scenes.objects = objects;
    std::size_t found = 0;
    for (const eval::SceneQuestion& q : asked_scenes({}, recipe, 1, 100))
      found = std::max(found, q.scene.objects.size());
    return found;
  };
  EXPECT_EQ(most(2), 2u);
  EXPECT_EQ(most(4), 4u);
}

TEST(Experiment, WhatIsNoNumberIsLeftOutOfMeans) {
  RowResult row;
  row.runs[1] = {{"misfit", std::nan("")}}, row.runs[2] = {{"misfit", 3}};
  EXPECT_EQ(row.mean("misfit")->mean, 3);
  EXPECT_EQ(row.mean("misfit")->count, 1);
}

// What make_plan says of an experiment.
std::string mistake_of(const Experiment& experiment) {
  try {
    make_plan(experiment);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Experiment, ConstantsAreNumbers) {
  const std::vector<std::string> points = {"1: omega=1", "2: omega=2"};
  const auto of_points = [&](const std::string& test) {
    return mistake_of(small_experiment({"a:"}, {test}, points, "point"));
  };
  const auto of_arms = [&](const std::string& test) {
    return mistake_of(small_experiment(two_arms, {test}));
  };
  EXPECT_EQ(of_points("frechet: 2 > 1"), "");
  EXPECT_EQ(of_points("frechet: 2 > number 3"), "");
  EXPECT_NE(of_points("frechet: 2 > 3").find("no row is named 3"), std::string::npos);
  EXPECT_EQ(of_arms("frechet: one > 3.5"), "");
  EXPECT_EQ(of_arms("frechet: one = number 3 within 2.5 %"), "");
  for (const char* text : {"nan", "inf", "10x", "number nan", "number 10x"})
    EXPECT_NE(of_arms(std::string("frechet: one > ") + text), "") << text;
  for (const char* share : {"nan", "inf", "10x", "0", "-5", "100"})
    EXPECT_NE(of_arms(std::string("frechet: one = two within ") + share + " %").find("expected a margin"),
              std::string::npos)
        << share;
}

TEST(Experiment, ArmsThatCannotBe) {
  const auto says = [](std::vector<std::string> arms, const char* text, const std::string& swept = {}) {
    Experiment experiment = small_experiment(std::move(arms), {});
    SweepConfig& sweep = experiment.file.sweep;
    sweep.field = swept, sweep.values = {"0.1"}, sweep.seeds = {101}, sweep.metric = "frechet";
    return mistake_of(experiment).find(text) != std::string::npos;
  };
  EXPECT_TRUE(says({"a: judged=maybe"}, "expected yes or no, got maybe"));
  EXPECT_TRUE(says({"sweep:"}, "got sweep"));
  EXPECT_TRUE(says({"sheets:"}, "got sheets"));
  EXPECT_TRUE(says({"a:", "b: from=a"}, "give it sweep=ARM", "optimizer.lr"));
  EXPECT_FALSE(says({"a:", "b: from=a sweep=a"}, "sweep", "optimizer.lr"));
  EXPECT_FALSE(says({"a:", "b: from=a"}, "sweep"));
}

TEST(Experiment, SeedsAreNotTheJudges) {
  for (const std::int64_t seed : {0, 900, 901, 1001}) {
    Experiment experiment = small_experiment({"a:"}, {});
    experiment.file.seeds = {1, seed};
    EXPECT_NE(mistake_of(experiment).find("the judge's own"), std::string::npos) << seed;
  }
}

TEST(Experiment, FitsOfOneSeedHaveNoInterval) {
  const Plan plan = make_plan(small_experiment(
      {"s: network.dim=16", "m: network.dim=32", "l: network.dim=64"}, {"frechet: falls"}, {}, "macs"));
  const auto table = [&](const std::vector<std::vector<double>>& values) {
    return table_text(plan, analysed(plan, values));
  };
  EXPECT_NE(table({{30, 31}, {20, 22}, {11, 10}}).find("runs drawn again"), std::string::npos);
  const std::string single = table({{30}, {20}, {11}});
  EXPECT_NE(single.find("Fits of the means"), std::string::npos);
  EXPECT_EQ(single.find("runs drawn again"), std::string::npos);
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

// ---- drawings that are spoilt

at::Tensor spoilt_by(const std::string& name, const at::Tensor& pictures) {
  for (const Dose& dose : doses())
    if (dose.name == name) return dose.spoilt(pictures);
  ADD_FAILURE() << name;
  return pictures;
}

TEST(Backlog, DoesPiecesInOrderBesideOtherWork) {
  Backlog backlog;
  std::promise<void> gate;
  const std::shared_future<void> open = gate.get_future().share();
  std::vector<int> done;
  for (int i = 0; i < 5; ++i)
    backlog.add([&done, open, i] {
      open.wait();
      done.push_back(i);
    });
  EXPECT_TRUE(done.empty());  // and add has come back
  gate.set_value();
  backlog.finish();
  EXPECT_EQ(done, (std::vector{0, 1, 2, 3, 4}));
}

TEST(Backlog, TellsOfAFailureAndDropsWhatCameAfterIt) {
  Backlog backlog;
  bool later = false;
  std::promise<void> gate;
  backlog.add([open = gate.get_future().share()] {
    open.wait();
    throw Error("the judge fell ill");
  });
  backlog.add([&] { later = true; });
  gate.set_value();
  EXPECT_THROW(backlog.finish(), Error);
  EXPECT_FALSE(later);
  backlog.add([&] { later = true; });  // told once
  backlog.finish();
  EXPECT_TRUE(later);
}

TEST(Backlog, DropsWhatHasNotBegunWhenItGoes) {
  std::promise<void> begun;
  bool later = false;
  {
    Backlog backlog;
    backlog.add([&] {
      begun.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    });
    backlog.add([&] { later = true; });
    begun.get_future().wait();
  }
  EXPECT_FALSE(later);
}

TEST(Doses, KeepWhatTheyDoNotSpoil) {
  at::manual_seed(3);
  const at::Tensor pictures = at::randint(0, 256, {40, 3, 8, 8}, at::kByte),
                   clips = at::randint(0, 256, {4, 3, 5, 8, 8}, at::kByte),
                   grey = at::full({2, 3, 8, 8}, 100, at::kByte);
  for (const Dose& dose : doses()) {
    for (const at::Tensor& made : {pictures, clips}) {
      const at::Tensor found = dose.spoilt(made);
      EXPECT_EQ(found.sizes(), made.sizes()) << dose.name;
      EXPECT_EQ(found.scalar_type(), at::kByte) << dose.name;
    }
    EXPECT_FALSE(at::equal(dose.spoilt(pictures), pictures)) << dose.name;
    EXPECT_TRUE(at::equal(dose.spoilt(pictures), dose.spoilt(pictures))) << dose.name;
    EXPECT_EQ(at::equal(dose.spoilt(grey), grey), dose.name != "grain") << dose.name;
  }
  for (const char* name : {"1 in 20 another's", "1 in 20 the same"}) {
    const at::Tensor changed = (spoilt_by(name, pictures) != pictures).flatten(1).any(1);
    EXPECT_EQ(changed.sum().item<std::int64_t>(), std::string(name) == "1 in 20 the same" ? 1 : 2) << name;
    EXPECT_TRUE(changed[20].item<bool>()) << name;
  }
  const auto roughness = [](const at::Tensor& t) {
    return t.to(at::kDouble).diff(1, -1).abs().mean().item<double>();
  };
  const double blurred = roughness(spoilt_by("blurred", pictures)),
               softer = roughness(spoilt_by("softer", pictures));
  EXPECT_LT(blurred, 0.5 * softer);
  EXPECT_LT(softer, 0.8 * roughness(pictures));
  EXPECT_GT(roughness(spoilt_by("grain", grey)), 8);
  // Red turns towards yellow or magenta, and stays as bright.
  at::Tensor red = at::full({1, 3, 1, 1}, 50, at::kByte);
  red[0][0].fill_(200);
  const at::Tensor turned = spoilt_by("hues turned", red).flatten().to(at::kDouble);
  EXPECT_NEAR(turned.sum().item<double>(), 300, 2);
  EXPECT_GT(std::abs(turned[1].item<double>() - turned[2].item<double>()), 10);
}

}  // namespace
}  // namespace pom::cli::experiment
