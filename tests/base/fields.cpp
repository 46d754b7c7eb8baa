// Tests of declared fields: ranges, choices, and fields bound without their types.
#include "pom/base/fields.h"

#include <cmath>
#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom {
namespace {

struct Inner {
  double ratio = 0.5;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "ratio", .help = "of both"}, ratio);
  }
};

struct Options {
  std::int64_t steps = 3;
  std::optional<std::string> sampler;
  std::vector<std::int64_t> size;
  Inner inner;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "steps", .help = "steps", .least = 1, .most = 10}, steps);
    visit(Field{.name = "sampler", .help = "name", .choices = {"heun", "euler"}}, sampler);
    visit(Field{.name = "size", .help = "sides"}, size);
    visit(Field{.name = "inner", .help = "more"}, inner);
  }
};

template <class... Arguments>
std::string error_of(const Arguments&... arguments) {
  try {
    check_value(arguments...);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Fields, RangeInWords) {
  EXPECT_EQ(range_text({.name = "a", .help = "", .least = 1, .most = 10000}), "1 to 10000");
  EXPECT_EQ(range_text({.name = "a", .help = "", .least = 0.5}), "at least 0.5");
  EXPECT_EQ(range_text({.name = "a", .help = "", .most = -1}), "at most -1");
  EXPECT_EQ(range_text({.name = "a", .help = ""}), "");
}

TEST(Fields, ChecksNumbers) {
  const Field steps{.name = "steps", .help = "", .least = 1, .most = 10};
  EXPECT_EQ(error_of(steps, 1.0, "run: "), "");
  EXPECT_EQ(error_of(steps, 10.0, "run: "), "");
  EXPECT_EQ(error_of(steps, 0.0, "run: "), "run: steps: expected 1 to 10, got 0");
  EXPECT_EQ(error_of(steps, 10.5, ""), "steps: expected 1 to 10, got 10.5");
  EXPECT_NE(error_of(steps, std::nan(""), ""), "");
  EXPECT_EQ(error_of(Field{.name = "x", .help = ""}, 1e300, ""), "");
}

TEST(Fields, ChecksNames) {
  Field sampler{.name = "sampler", .help = "", .choices = {"heun", "euler"}};
  EXPECT_EQ(error_of(sampler, std::string_view("heun"), ""), "");
  EXPECT_EQ(error_of(sampler, std::string_view("huen"), "sample: "),
            "sample: sampler: unknown value \"huen\"; did you mean \"heun\"?");
  EXPECT_EQ(error_of(Field{.name = "x", .help = ""}, std::string_view("anything"), ""), "");
  sampler.closed = false;
  EXPECT_EQ(error_of(sampler, std::string_view("Heun 2"), ""), "");
}

TEST(Fields, Names) {
  Options options;
  EXPECT_EQ(field_names(options), (std::vector<std::string>{"steps", "sampler", "size", "inner"}));
}

TEST(Fields, BoundFieldsReachTheStruct) {
  Options options;
  const std::vector<BoundField> bound = bind_fields(options);
  ASSERT_EQ(bound.size(), 4u);
  *std::get<std::int64_t*>(bound[0].value) = 7;
  std::get<std::optional<std::string>*>(bound[1].value)->emplace("euler");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(bound[3].value));
  ASSERT_EQ(bound[3].inner.size(), 1u);
  *std::get<double*>(bound[3].inner[0].value) = 0.25;
  EXPECT_EQ(options.steps, 7);
  EXPECT_EQ(options.sampler, "euler");
  EXPECT_EQ(options.inner.ratio, 0.25);
}

}  // namespace
}  // namespace pom
