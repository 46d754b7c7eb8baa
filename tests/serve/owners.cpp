// Tests of names of owners: the same with the same salt, others with another.
#include "pom/serve/owners.h"

#include <fstream>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "pom/base/error.h"
#include "pom/serve/pictures.h"

namespace pom::serve {
namespace {

namespace fs = std::filesystem;

TEST(Owners, NamesOutliveThem) {
  std::string name = (fs::temp_directory_path() / "pom-owners-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  const fs::path folder = name;
  const std::string mine = Owners(folder).of("key abc");
  EXPECT_TRUE(is_id(mine));
  Owners again(folder);
  EXPECT_EQ(again.of("key abc"), mine);
  EXPECT_EQ(again.of("key abc"), mine);
  EXPECT_NE(again.of("key abd"), mine);
  EXPECT_NE(Owners(folder / "other").of("key abc"), mine);
  EXPECT_NE(Owners().of("key abc"), mine);
  EXPECT_EQ(fs::status(folder / "owners.salt").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  std::ofstream(folder / "owners.salt") << "short";
  EXPECT_THROW(Owners{folder}, Error);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace pom::serve
