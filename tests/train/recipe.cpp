#include "pom/train/recipe.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include "pom/base/error.h"
#include "pom/data/dataset.h"

namespace pom::train {
namespace {

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Recipe, EmptyIsAllDefaults) {
  const Recipe recipe = parse_recipe("", "r.toml");
  EXPECT_EQ(recipe.optimizer.lr, 1e-4);
  EXPECT_EQ(recipe.data.kind, "shapes");
  EXPECT_EQ(recipe.network.classes, 0) << "which the data tells";
  EXPECT_NO_THROW(check_recipe(recipe, "r.toml"));
}

TEST(Recipe, SetsComeAfterTheFile) {
  const std::vector<std::string> sets = {"optimizer.lr=3e-4", "run.name=my run", "data.size=[32, 16]"};
  const Recipe recipe = parse_recipe("[optimizer]\nlr = 1.0\n", "r.toml", sets);
  EXPECT_EQ(recipe.optimizer.lr, 3e-4);
  EXPECT_EQ(recipe.run.name, "my run");
  EXPECT_EQ(recipe.sample.size, (std::vector<std::int64_t>{32, 16})) << "the data's, unless told";
}

TEST(Recipe, AVariantGivesTheRest) {
  const Recipe recipe = parse_recipe("[network]\nvariant = \"DiPoM-L/4\"\n", "r.toml");
  EXPECT_EQ(recipe.network.dim, 1024);
  EXPECT_EQ(recipe.network.depth, 24);
  EXPECT_EQ(recipe.network.patch, 4);
  EXPECT_EQ(recipe.network.classes, 0);
}

TEST(Recipe, ClassesAndChannelsComeFromTheData) {
  Recipe recipe = parse_recipe("", "r.toml");
  const data::Split data = data::open_dataset(recipe.data, 0);
  complete_recipe(recipe, *data.training);
  EXPECT_EQ(recipe.network.classes, 10);
  EXPECT_EQ(recipe.network.channels, 3);
  recipe.network.classes = 12;
  EXPECT_EQ(message_of([&] { complete_recipe(recipe, *data.training); }),
            "train: network.classes: expected 10, as the data has, got 12");
}

TEST(Recipe, TextReadsBackTheSame) {
  const std::vector<std::string> sets = {"optimizer.lr=0.00012345678901234567",
                                         "run.about=\"quotes \\\" and\"",
                                         "network.dim=64",
                                         "batch.checkpointing=true",
                                         "network.classes=10",
                                         "network.channels=3"};
  const Recipe recipe = parse_recipe("", "r.toml", sets);
  const std::string text = recipe_text(recipe);
  const Recipe again = parse_recipe(text, "again.toml");
  EXPECT_TRUE(changes(recipe, again).empty());
  EXPECT_EQ(recipe_text(again), text);
}

TEST(Recipe, ChangesSayWhatAResumedRunMayHave) {
  const Recipe before = parse_recipe("", "r.toml");
  const std::vector<std::string> sets = {"network.dim=64", "optimizer.lr=1", "run.seed=3", "log.keep=9"};
  std::map<std::string, bool> allowed;
  for (const Change& change : changes(before, parse_recipe("", "r.toml", sets)))
    allowed[change.field] = change.allowed;
  EXPECT_EQ(allowed,
            (std::map<std::string, bool>{
                {"network.dim", false}, {"optimizer.lr", true}, {"run.seed", false}, {"log.keep", true}}));
}

TEST(Recipe, WhatTheFieldsCannotSayAlone) {
  const auto refused = [](const std::string& set) {
    const std::vector<std::string> sets = {set};
    return message_of([&] { check_recipe(parse_recipe("", "r.toml", sets), "r.toml"); });
  };
  EXPECT_EQ(refused("optimizer.cooldown=1001"),
            "r.toml: optimizer.cooldown: expected at most run.steps (1000), got 1001");
  EXPECT_EQ(refused("batch.accumulate=3"),
            "r.toml: batch.accumulate: expected a divisor of batch.size (64), got 3");
  EXPECT_EQ(refused("data.size=[64]"), "r.toml: data.size: expected width and height, got 1 numbers");
  EXPECT_EQ(refused("data.size=[64, 63]"),
            "r.toml: data.size: expected sides that network.patch (2) divides, got 64x63");
  EXPECT_NE(refused("data.path=somewhere").find("expected nothing with data.kind shapes"), std::string::npos);
  EXPECT_NE(refused("data.kind=folder").find("--set data.path=DIR"), std::string::npos);
  EXPECT_NE(refused("network.dim=30").find("r.toml: network: dim"), std::string::npos);
}

std::string refusal(const std::string& set) {
  const std::vector<std::string> sets = {set};
  return message_of([&] { check_recipe(parse_recipe("", "r.toml", sets), "r.toml"); });
}

TEST(Recipe, ANameIsOneComponentOfAPath) {
  for (const char* name : {"a", "shapes-64_v1.2", "0", "-", "UPPER"})
    EXPECT_EQ(refusal("run.name=" + std::string(name)), "nothing was thrown") << name;
  for (const char* name :
       {"../../x", "/tmp/x", "a/b", "..", ".", ".hidden", "my run", "a\\nb", "\\u001b[31m", "é"})
    EXPECT_NE(refusal("run.name=\"" + std::string(name) + "\"").find("r.toml: run.name: expected"),
              std::string::npos)
        << name;
  EXPECT_NE(refusal("run.name=" + std::string(201, 'a')).find("at most 200"), std::string::npos);
  EXPECT_LT(refusal("run.name=" + std::string(1 << 20, 'a')).size(), 300u);
}

TEST(Recipe, AFileOfAnyNameNamesARun) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "pom recipe test";
  std::filesystem::create_directory(folder);
  for (const auto& [file, name] : {std::pair{"my first.toml", "my-first"}, {".hidden.toml", "hidden"}}) {
    std::ofstream(folder / file) << "";
    EXPECT_EQ(read_recipe(folder / file).run.name, name);
  }
  std::filesystem::remove_all(folder);
}

// Each of these came to light when the model was first written, or the data opened.
TEST(Recipe, WhatTheModelWouldBeRefusedForIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"sample.sampler=xx", "r.toml: sample: sampler: there is no \"xx\""},
      {"sample.eta=0.5", "r.toml: sample: eta: expected 0, because the sampler heun has none, got 0.5"},
      {"sample.size=[64]", "r.toml: sample.size: expected [width, height], got 1 numbers"},
      {"sample.size=[63, 64]",
       "r.toml: sample.size: expected sides from 1 to 65536 that the patch (2) divides"},
      {"data.size=[65536, 65536]", "r.toml: data: size: "},
  };
  for (const auto& [set, said] : cases)
    EXPECT_EQ(refusal(set).find(said), 0u) << refusal(set) << "\nexpected " << said;
  const std::vector<std::string> sets = {"sample.cfg_from=0.7", "sample.cfg_to=0.2"};
  EXPECT_EQ(message_of([&] { check_recipe(parse_recipe("", "r.toml", sets), "r.toml"); }),
            "r.toml: sample.cfg_from: expected at most cfg_to, 0.2, got 0.7");
}

}  // namespace
}  // namespace pom::train
