#include "pom/base/build_info.h"

#include <gtest/gtest.h>

namespace {

TEST(BuildInfo, SaysWhatThisIs) {
  const pom::BuildInfo info = pom::build_info();
  EXPECT_EQ(std::count(info.version.begin(), info.version.end(), '.'), 2) << info.version;
  EXPECT_FALSE(info.compiler.empty());
  EXPECT_NE(pom::build_line().find(info.version), std::string::npos) << pom::build_line();
}

}  // namespace
