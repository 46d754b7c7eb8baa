// Tests of suggestions: distances by hand, what counts as near, and how a message ends.
#include "pom/base/suggest.h"

#include <gtest/gtest.h>

namespace pom {
namespace {

using Names = std::vector<std::string>;

TEST(SameLetters, CaseAside) {
  EXPECT_TRUE(same_letters("DiPoM-XL/2", "dipom-xl/2"));
  EXPECT_FALSE(same_letters("star", "stars"));
  EXPECT_FALSE(same_letters("star", "stat"));
}

TEST(Suggest, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("steps", ""), 5u);
  EXPECT_EQ(edit_distance("", "steps"), 5u);
  EXPECT_EQ(edit_distance("steps", "steps"), 0u);
  EXPECT_EQ(edit_distance("Steps", "sTEPS"), 0u);  // letter case aside
  EXPECT_EQ(edit_distance("step", "steps"), 1u);   // insertion
  EXPECT_EQ(edit_distance("stteps", "steps"), 1u);
  EXPECT_EQ(edit_distance("stops", "steps"), 1u);
  EXPECT_EQ(edit_distance("stpes", "steps"), 1u);  // neighbours swapped
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Suggest, NearestFirst) {
  const Names names = {"square", "star", "stir", "circle"};
  EXPECT_EQ(nearest_names("sta", names), (Names{"star"}));
  EXPECT_EQ(nearest_names("stat", names), (Names{"star"}));
  EXPECT_EQ(nearest_names("stbr", names), (Names{"star", "stir"}));
  EXPECT_EQ(nearest_names("stir", names), (Names{"stir", "star"}));
  EXPECT_EQ(nearest_names("stir", names, 1), (Names{"stir"}));
  EXPECT_EQ(nearest_names("CIRCEL", names), (Names{"circle"}));
  EXPECT_TRUE(nearest_names("hexagon", names).empty());
  EXPECT_TRUE(nearest_names("", names).empty());
  EXPECT_TRUE(nearest_names("star", {}).empty());
}

TEST(Suggest, PartsOfLongNames) {
  const Names names = {"goldfish, Carassius auratus", "great white shark", "tench"};
  EXPECT_EQ(nearest_names("goldfish", names), (Names{names[0]}));
  EXPECT_EQ(nearest_names("Shark", names), (Names{names[1]}));
}

TEST(Suggest, LongTextsAreNoNames) {
  EXPECT_TRUE(nearest_names(std::string(100'000, 'a'), Names{"aaa"}).empty());
  EXPECT_EQ(nearest_names("abc", Names{"abc" + std::string(100'000, 'x')}).size(), 1u);
}

TEST(Suggest, EndOfMessage) {
  const Names names = {"fp32", "bf16"};
  EXPECT_EQ(suggestion("bf15", names), "; did you mean \"bf16\"?");
  EXPECT_EQ(suggestion("float", names), "; there are fp32, bf16");
  EXPECT_EQ(suggestion("float", Names(100, "name")), "");
  EXPECT_EQ(suggestion("float", {}), "");
}

}  // namespace
}  // namespace pom
