// Tests of failpoints, each in a child: when they come, what they do, and what values are refused.
#include "pom/base/failpoint.h"

#include "tests/base/child.h"
#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace pom {
namespace {

using testing::in_child;

// The errno values of so many calls, as the child's error.
void tell(std::string_view name, int calls) {
  std::string codes;
  for (int i = 0; i < calls; ++i) codes += std::to_string(failpoint(name)) + " ";
  fail(codes);
}

TEST(Failpoint, OffUnlessNamed) {
  EXPECT_EQ(in_child("", [] { tell("a", 3); }).error, "0 0 0 ");
  EXPECT_EQ(in_child("b:1", [] { tell("a", 3); }).error, "0 0 0 ");
  EXPECT_EQ(in_child("a.b:1", [] { tell("a", 3); }).error, "0 0 0 ");
  EXPECT_EQ(in_child("a:1:EIO",
                     [] {
                       ::unsetenv("POM_FAILPOINT");
                       tell("a", 3);
                     })
                .error,
            "0 0 0 ");
}

TEST(Failpoint, KillsAtItsTime) {
  EXPECT_TRUE(in_child("a:1", [] { tell("a", 1); }).killed);
  EXPECT_TRUE(in_child("a:3", [] { tell("a", 3); }).killed);
  EXPECT_EQ(in_child("a:3", [] { tell("a", 2); }).error, "0 0 ");
  EXPECT_EQ(in_child("a:1", [] { tell("b", 2); }).error, "0 0 ");
}

TEST(Failpoint, FailsOnceByNameOrNumber) {
  EXPECT_EQ(in_child("a:2:ENOSPC", [] { tell("a", 3); }).error, "0 " + std::to_string(ENOSPC) + " 0 ");
  EXPECT_EQ(in_child("a:1:EIO", [] { tell("a", 2); }).error, std::to_string(EIO) + " 0 ");
  EXPECT_EQ(in_child("a:1:EACCES", [] { tell("a", 1); }).error, std::to_string(EACCES) + " ");
  EXPECT_EQ(in_child("a:1:99", [] { tell("a", 1); }).error, "99 ");
}

TEST(Failpoint, SeveralAtATime) {
  EXPECT_EQ(in_child("b:1:EIO,a:2:ENOSPC", [] { tell("a", 3); }).error,
            "0 " + std::to_string(ENOSPC) + " 0 ");
  EXPECT_TRUE(in_child("a:1:EIO,b:1", [] {
                failpoint("a");
                failpoint("b");
              }).killed);
}

TEST(Failpoint, SaysWhetherItIsNamed) {
  const auto named = [] { check(!failpoint_is_set("a"), failpoint_is_set("b") ? "both" : "a alone"); };
  EXPECT_EQ(in_child("a:7", named).error, "a alone");
  EXPECT_EQ(in_child("b:7", named).code, 0);
  EXPECT_EQ(in_child("", named).code, 0);
}

TEST(Failpoint, CountsThreadsTogether) {
  const auto threads = [] {
    std::atomic<int> failures = 0;
    std::vector<std::thread> all;
    for (int i = 0; i < 4; ++i)
      all.emplace_back([&] {
        for (int j = 0; j < 1000; ++j) failures += failpoint("a") != 0;
      });
    for (std::thread& thread : all) thread.join();
    fail("failures: ", failures);
  };
  EXPECT_EQ(in_child("a:4000:EIO", threads).error, "failures: 1");
  EXPECT_EQ(in_child("a:4001:EIO", threads).error, "failures: 0");
}

TEST(Failpoint, RefusesOtherForms) {
  for (const std::string value : {"a", "a:", ":1", "a:0", "a:-1", "a:x", "a:1x", "a:1:", "a:1:EWHAT", "a:1:0",
                                  "a:1:-5", "a:1:EIO:", "a:1,", ",a:1", "a:1,b", "a:99999999999999999999"}) {
    const testing::Ending ending = in_child(value.c_str(), [] {
      try {
        failpoint("b");
      } catch (const Error&) {
      }
      failpoint("b");  // and again, not only the first time
    });
    EXPECT_EQ(ending.error,
              "POM_FAILPOINT: expected NAME:COUNT or NAME:COUNT:ERRNO, for instance atomic_file.rename:3 or "
              "atomic_file.write:1:ENOSPC, got \"" +
                  value + "\"");
  }
}

}  // namespace
}  // namespace pom
