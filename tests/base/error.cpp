#include "pom/base/error.h"

#include <gtest/gtest.h>
#include <string>

namespace pom {
namespace {

std::string message_of(auto&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

TEST(Error, JoinsItsParts) {
  EXPECT_EQ(message_of([] { fail("mixer: order: expected at least ", 1, ", got ", -2.5, '!'); }),
            "mixer: order: expected at least 1, got -2.5!");
}

TEST(Error, CheckThrowsOnlyWhenFalse) {
  EXPECT_EQ(message_of([] { check(true, "unused"); }), "(nothing was thrown)");
  EXPECT_EQ(message_of([] { check(false, "read: file: ", std::string("absent")); }), "read: file: absent");
}

TEST(Error, IsAStandardException) {
  EXPECT_THROW(fail("x"), std::runtime_error);
  EXPECT_THROW(check(false, "x"), std::exception);
}

// A passing check must not pay for its message.
struct Counted {
  int* printed;
};
std::ostream& operator<<(std::ostream& out, const Counted& counted) {
  ++*counted.printed;
  return out << "counted";
}

TEST(Error, APassingCheckFormatsNothing) {
  int printed = 0;
  check(true, Counted{&printed});
  EXPECT_EQ(printed, 0);
  EXPECT_EQ(message_of([&] { check(false, Counted{&printed}); }), "counted");
  EXPECT_EQ(printed, 1);
}

}  // namespace
}  // namespace pom
