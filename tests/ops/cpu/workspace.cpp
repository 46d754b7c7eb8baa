#include "pom/ops/cpu/workspace.h"

#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>

namespace {

using pom::ops::cpu::Workspace;

TEST(Workspace, IsReusedAlignedAndNeverShared) {
  pom::ops::cpu::release_workspaces();
  void* first;
  {
    const Workspace a(1 << 20);
    first = a.data();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
    std::memset(first, 1, 1 << 20);
    const Workspace b(1 << 20);
    EXPECT_NE(b.data(), first);
  }
  const Workspace again(1 << 20), other(1 << 20);
  EXPECT_NE(again.data(), other.data());
  EXPECT_TRUE(again.data() == first || other.data() == first);
}

TEST(Workspace, LargeOnesGoBackToTheSystem) {
  pom::ops::cpu::release_workspaces();
  { const Workspace large(Workspace::kKeep + 1); }
  { const Workspace empty(0); }
  const Workspace small(16);
  EXPECT_NE(small.data(), nullptr);
}

}  // namespace
