// Tests of the words for classes.
#include "pom/generate/classes.h"

#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::generate {
namespace {

using Numbers = std::vector<std::int64_t>;
const std::vector<std::string> names = {"circle", "Star",  "otter, sea", "3-4",
                                        "crane",  "crane", "sea",        "a, b, c"};

Numbers parsed(std::string_view text) {
  return parse_classes(text, names, 8);
}
std::string error_of(std::string_view text) {
  try {
    parsed(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Classes, NamesNumbersRangesAndLists) {
  EXPECT_EQ(parsed("circle"), (Numbers{0}));
  EXPECT_EQ(parsed(" STAR "), (Numbers{1}));
  EXPECT_EQ(parsed("7"), (Numbers{7}));
  EXPECT_EQ(parsed("0-2"), (Numbers{0, 1, 2}));
  EXPECT_EQ(parsed("5-5"), (Numbers{5}));
  EXPECT_EQ(parsed("star,0,5-6,star"), (Numbers{1, 0, 5, 6, 1})) << "order and repeats are kept";
  EXPECT_EQ(parsed("all"), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(parsed("none"), (Numbers{8}));
  EXPECT_EQ(parsed("none, circle"), (Numbers{8, 0}));
}

TEST(Classes, NamesMayHaveCommasAndLookLikeRanges) {
  EXPECT_EQ(parsed("otter, sea"), (Numbers{2}));
  EXPECT_EQ(parsed("circle,otter, sea,star"), (Numbers{0, 2, 1}));
  EXPECT_EQ(parsed("a, b, c,a, b, c"), (Numbers{7, 7}));
  EXPECT_EQ(parsed("sea,star"), (Numbers{6, 1}));
  EXPECT_EQ(parsed("3-4"), (Numbers{3}));
}

TEST(Classes, Mistakes) {
  EXPECT_EQ(error_of("stra"), "sample: class: the model has no class \"stra\"; did you mean \"Star\"?");
  EXPECT_EQ(error_of("star,otter"),
            "sample: class: the model has no class \"otter\"; did you mean \"otter, sea\"?");
  EXPECT_EQ(error_of("8"), "sample: class: expected a number from 0 to 7, got 8");
  EXPECT_EQ(error_of("5-8"), "sample: class: expected a number from 0 to 7, got 8");
  EXPECT_EQ(error_of("99999999999999999999999"), "sample: class: expected a number from 0 to 7, got more");
  EXPECT_EQ(error_of("6-2"),
            "sample: class: expected a range from the smaller to the larger number, got 6-2");
  EXPECT_NE(error_of("crane").find("class 4 and of class 5"), std::string::npos);
  for (const char* text : {"", " ", ",", "star,", ",star", "star,,circle", "-1", "1-", "1.5", "0-2-3"})
    EXPECT_EQ(error_of(text).find("sample: class: "), 0u) << text;
  EXPECT_THROW(parse_classes("star", {}, 10), Error);
  std::string many = "all";
  for (int i = 0; i < 200'000; ++i) many += ",all";
  EXPECT_NE(error_of(many).find("at most 1000000 classes"), std::string::npos);
}

TEST(Classes, TextOfEachClassGivesItBack) {
  for (std::int64_t i = 0; i <= 8; ++i) EXPECT_EQ(parsed(class_text(i, names, 8)), (Numbers{i}));
  EXPECT_EQ(class_text(1, names, 8), "Star");
  EXPECT_EQ(class_text(5, names, 8), "5") << "its name is not its own";
  EXPECT_EQ(class_text(3, {}, 8), "3");
  EXPECT_EQ(class_text(8, {}, 8), "none");
}

}  // namespace
}  // namespace pom::generate
