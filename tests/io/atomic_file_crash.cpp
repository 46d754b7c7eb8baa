// Tests of atomic writing through a crash: kill -9 and failing calls at every step of it, in child processes.
#include "tests/base/child.h"
#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

#include "pom/io/atomic_file.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;
using pom::testing::Ending;
using pom::testing::in_child;

const std::string old_bytes(50'000, 'o');
const std::string head(1'000, 'h'), body(100'000, 'b');  // the new ones, in two pieces

std::string contents(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

class AtomicFileCrash : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-crash-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
    path = folder / "file";
    std::ofstream(path) << old_bytes;
  }
  void TearDown() override { fs::remove_all(folder); }

  Ending write(const char* failpoint) {
    return in_child(failpoint, [&] {
      AtomicFile file(path);
      file.write(head);
      file.write(body);
      file.commit();
    });
  }

  // The sizes of temporaries, which a killed process cannot remove.
  std::vector<std::uintmax_t> temporaries() const {
    std::vector<std::uintmax_t> sizes;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (entry.path().filename().string().starts_with(".pom-tmp-")) sizes.push_back(entry.file_size());
    return sizes;
  }

  fs::path folder, path;
};

using Sizes = std::vector<std::uintmax_t>;

TEST_F(AtomicFileCrash, WithoutOneTheNewBytesAreThere) {
  EXPECT_EQ(write("").code, 0);
  EXPECT_EQ(contents(path), head + body);
  EXPECT_EQ(temporaries(), Sizes());
  EXPECT_EQ(write("atomic_file.write:3").code, 0) << "there are two writes";
}

TEST_F(AtomicFileCrash, KilledBeforeTheRenameTheOldBytesAreThere) {
  const struct {
    const char* failpoint;
    Sizes left;
  } cases[] = {
      {"atomic_file.create:1", {}},
      {"atomic_file.write:1", {head.size() / 2}},
      {"atomic_file.write:2", {head.size() + body.size() / 2}},
      {"atomic_file.sync:1", {head.size() + body.size()}},
      {"atomic_file.close:1", {head.size() + body.size()}},
      {"atomic_file.rename:1", {head.size() + body.size()}},
  };
  for (const auto& [failpoint, left] : cases) {
    EXPECT_TRUE(write(failpoint).killed) << failpoint;
    EXPECT_EQ(contents(path), old_bytes) << failpoint;
    EXPECT_EQ(temporaries(), left) << failpoint << ", and nothing of the one before";
  }
  EXPECT_EQ(write("").code, 0);
  EXPECT_EQ(temporaries(), Sizes()) << "the next process removes what a killed one left";
}

TEST_F(AtomicFileCrash, KilledAfterTheRenameTheNewBytesAreThere) {
  EXPECT_TRUE(write("atomic_file.sync_folder:1").killed);
  EXPECT_EQ(contents(path), head + body);
  EXPECT_EQ(temporaries(), Sizes());
}

TEST_F(AtomicFileCrash, WhereNothingWasNothingIsUntilTheRename) {
  fs::remove(path);
  for (const char* step : {"create", "write", "sync", "close", "rename"}) {
    EXPECT_TRUE(write(("atomic_file." + std::string(step) + ":1").c_str()).killed) << step;
    EXPECT_FALSE(fs::exists(path)) << step;
  }
}

TEST_F(AtomicFileCrash, ACallThatFailsIsToldAndLeavesTheOldBytes) {
  const std::pair<const char*, const char*> cases[] = {
      {"atomic_file.create:1:EACCES", "cannot create a temporary file in its folder: Permission denied"},
      {"atomic_file.write:1:ENOSPC", "cannot write: No space left on device"},
      {"atomic_file.write:2:ENOSPC", "cannot write: No space left on device"},
      {"atomic_file.sync:1:EIO", "cannot sync: Input/output error"},
      {"atomic_file.close:1:EDQUOT", "cannot close: Disk quota exceeded"},
      {"atomic_file.rename:1:EROFS", "cannot rename into place: Read-only file system"},
  };
  for (const auto& [failpoint, words] : cases) {
    const Ending ending = write(failpoint);
    EXPECT_EQ(ending.code, 1) << failpoint;
    EXPECT_EQ(ending.error, "atomic write: " + path.string() + ": " + words);
    EXPECT_EQ(contents(path), old_bytes) << failpoint;
    EXPECT_EQ(temporaries(), Sizes()) << failpoint;
  }
}

TEST_F(AtomicFileCrash, AFolderThatCannotBeSyncedIsToldWithTheNewBytesInPlace) {
  const Ending ending = write("atomic_file.sync_folder:1:EIO");
  EXPECT_EQ(ending.error, "atomic write: " + path.string() + ": cannot sync its folder: Input/output error");
  EXPECT_EQ(contents(path), head + body);
}

TEST_F(AtomicFileCrash, AWrongFailpointIsAnError) {
  EXPECT_EQ(write("atomic_file.write").error.find("POM_FAILPOINT: expected NAME:COUNT"), 0u);
  EXPECT_EQ(contents(path), old_bytes);
}

}  // namespace
}  // namespace pom::io
