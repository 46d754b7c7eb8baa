// Tests of the lock on a folder: one holder at a time, and none after its process has ended.
#include "pom/io/folder_lock.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <optional>
#include <sys/wait.h>

#include "pom/base/error.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;

class FolderLockTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-lock-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  // Nothing, or why the folder cannot be locked.
  static std::string refusal(const fs::path& where) {
    try {
      FolderLock lock(where);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder;
};

// A child that holds the lock until it is killed.
class Holder {
 public:
  explicit Holder(const fs::path& folder) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    child_ = ::fork();
    if (child_ == 0) {
      const FolderLock lock(folder);
      if (::write(ends[1], "x", 1) == 1) ::pause();
      ::_exit(0);
    }
    ::close(ends[1]);
    char ready = 0;
    held_ = ::read(ends[0], &ready, 1) == 1;
    ::close(ends[0]);
  }
  ~Holder() { kill(); }

  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  bool held() const { return held_; }
  pid_t child() const { return child_; }

 private:
  pid_t child_ = 0;
  bool held_ = false;
};

TEST_F(FolderLockTest, OneAtATimeInOneProcess) {
  std::optional<FolderLock> lock(folder);
  EXPECT_EQ(refusal(folder),
            "folder lock: " + folder.string() + " is held by process " + std::to_string(::getpid()));
  lock.reset();
  EXPECT_EQ(refusal(folder), "");
  EXPECT_TRUE(fs::exists(folder / ".lock"));
}

TEST_F(FolderLockTest, SaysWhichProcessHoldsItUntilThatIsKilled) {
  Holder holder(folder);
  ASSERT_TRUE(holder.held());
  EXPECT_EQ(refusal(folder),
            "folder lock: " + folder.string() + " is held by process " + std::to_string(holder.child()));
  holder.kill();
  EXPECT_EQ(refusal(folder), "");
}

TEST_F(FolderLockTest, OtherFoldersAreFree) {
  fs::create_directory(folder / "other");
  const FolderLock lock(folder);
  EXPECT_EQ(refusal(folder / "other"), "");
}

TEST_F(FolderLockTest, AFileThatSomeoneLeftIsNoLock) {
  std::ofstream(folder / ".lock") << "a longer text than any number of a process\n";
  const FolderLock lock(folder);
  EXPECT_EQ(refusal(folder),
            "folder lock: " + folder.string() + " is held by process " + std::to_string(::getpid()));
  std::ofstream(folder / ".lock") << "?";
  EXPECT_EQ(refusal(folder), "folder lock: " + folder.string() + " is held by another process");
}

TEST_F(FolderLockTest, MovesWithItsOwner) {
  FolderLock lock(folder);
  const FolderLock moved(std::move(lock));
  EXPECT_NE(refusal(folder), "");
}

TEST_F(FolderLockTest, FoldersThatCannotBeLocked) {
  EXPECT_EQ(refusal(folder / "none"), "folder lock: " + (folder / "none").string() +
                                          ": cannot make .lock in it: No such file or directory");
  fs::create_directory(folder / ".lock");
  EXPECT_EQ(refusal(folder), "folder lock: " + folder.string() + ": cannot make .lock in it: Is a directory");
}

TEST_F(FolderLockTest, PartsShareAFolderAndHoldTheirOwn) {
  using Hold = FolderLock::Hold;
  const auto refused = [&](Hold hold, std::string_view part) -> std::string {
    try {
      FolderLock lock(folder, hold, part);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const FolderLock folder_lock(folder, Hold::shared), part(folder, Hold::exclusive, "part-0-of-2");
  EXPECT_EQ(refused(Hold::shared, {}), "");
  EXPECT_EQ(refused(Hold::exclusive, "part-1-of-2"), "");
  EXPECT_EQ(refused(Hold::exclusive, {}), "folder lock: " + folder.string() + " is held by another process");
  EXPECT_EQ(
      refused(Hold::exclusive, "part-0-of-2"),
      "folder lock: " + folder.string() + ": part-0-of-2 is held by process " + std::to_string(::getpid()));
}

}  // namespace
}  // namespace pom::io
