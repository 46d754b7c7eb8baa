// Tests of folders that are replaced as one: killed or failing at any step, and with a reader beside the
// writer, all files are the old ones or all are the new ones.
#include "pom/io/folder_swap.h"

#include "tests/base/child.h"
#include <atomic>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <thread>

#include "pom/io/atomic_file.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;
using pom::testing::Ending;
using pom::testing::in_child;

const char* const names[] = {"config", "inner/weights", "weights"};

std::string contents(const detail::FileDescriptor& file) {
  std::string text(64, '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

// What all files say, or a text that tells how they differ.
std::string read_all(const fs::path& path) {
  return read_folder(path, "test", [](const OpenFolder& folder) {
    std::string first, all;
    for (const char* name : names) {
      const std::string text = contents(folder.open(name, "test"));
      if (first.empty()) first = text;
      all += text + " ";
      if (text != first) first = "mixed";
    }
    return first == "mixed" ? "mixed: " + all : first;
  });
}

void replace(const fs::path& path, const std::string& text) {
  FolderSwap swap(path);
  fs::create_directory(swap.folder() / "inner");
  for (const char* name : names) write_file_atomically(swap.folder() / name, text);
  swap.commit();
}

class Swap : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-swap-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root = name;
    path = root / "model";
    fs::create_directories(path / "inner");
    for (const char* each : names) std::ofstream(path / each) << "old";
  }
  void TearDown() override { fs::remove_all(root); }

  Ending replace_in_child(const std::string& failpoint) {
    return in_child(failpoint.c_str(), [&] { replace(path, "new"); });
  }
  std::ptrdiff_t leftovers() const {
    return std::distance(fs::directory_iterator(root), fs::directory_iterator()) - 1;
  }

  fs::path root, path;
};

TEST_F(Swap, ReplacesAllAndLeavesNothing) {
  EXPECT_EQ(replace_in_child("").error, "");
  EXPECT_EQ(read_all(path), "new");
  EXPECT_EQ(leftovers(), 0);
}

TEST_F(Swap, MakesAFolderWhereThereIsNone) {
  fs::remove_all(path);
  EXPECT_EQ(replace_in_child("").error, "");
  EXPECT_EQ(read_all(path), "new");
  EXPECT_EQ(leftovers(), 0);
}

TEST_F(Swap, KilledBetweenAnyTwoWritesItIsWholeAllTheSame) {
  std::vector<std::string> before = {"folder_swap.create:1", "folder_swap.take_along:1", "folder_swap.sync:1",
                                     "folder_swap.exchange:1"};
  for (const char* step : {"create", "write", "sync", "close", "rename", "sync_folder"})
    for (const char* file : {":1", ":2", ":3"}) before.push_back(std::string("atomic_file.") + step + file);
  for (const std::string& failpoint : before) {
    EXPECT_TRUE(replace_in_child(failpoint).killed) << failpoint;
    EXPECT_EQ(read_all(path), "old") << failpoint;
  }
  for (const char* failpoint : {"folder_swap.sync_folder:1", "folder_swap.remove:1"}) {
    EXPECT_TRUE(replace_in_child(failpoint).killed) << failpoint;
    EXPECT_EQ(read_all(path), "new") << failpoint;
  }
}

TEST_F(Swap, AFileSystemThatCannotExchangeIsKilledToo) {
  const std::string cannot = "folder_swap.exchange:1:EINVAL";
  for (const char* failpoint : {"folder_swap.aside:1", "folder_swap.rename:1"}) {
    EXPECT_TRUE(replace_in_child(cannot + "," + failpoint).killed) << failpoint;
    EXPECT_EQ(read_all(path), "old") << failpoint << ": also where nothing is at the path";
  }
  EXPECT_EQ(in_child("", [&] { restore_folder(path); }).error, "");
  EXPECT_TRUE(fs::exists(path / "config")) << "what was set aside is back";
  EXPECT_TRUE(replace_in_child(cannot + ",folder_swap.remove:1").killed);
  EXPECT_EQ(read_all(path), "new");
  EXPECT_EQ(replace_in_child(cannot).error, "");
  EXPECT_EQ(read_all(path), "new");
  EXPECT_FALSE(fs::exists(root / ".pom-old-model"));
}

TEST_F(Swap, AFailureLeavesTheOldOneAloneAndNothingBeside) {
  for (const std::string failpoint :
       {"folder_swap.create:1:ENOSPC", "atomic_file.write:2:ENOSPC", "folder_swap.take_along:1:ENOSPC",
        "folder_swap.sync:1:ENOSPC", "folder_swap.exchange:1:ENOSPC",
        "folder_swap.exchange:1:EINVAL,folder_swap.aside:1:ENOSPC",
        "folder_swap.exchange:1:EINVAL,folder_swap.rename:1:ENOSPC"}) {
    const Ending ending = replace_in_child(failpoint);
    EXPECT_EQ(ending.code, 1) << failpoint;
    EXPECT_NE(ending.error.find("No space left on device"), std::string::npos) << ending.error;
    EXPECT_EQ(read_all(path), "old") << failpoint;
    EXPECT_EQ(leftovers(), 0) << failpoint;
  }
}

TEST_F(Swap, TakesAlongWhatOthersPutThere) {
  fs::create_directories(path / "notes");
  std::ofstream(path / "notes" / "mine") << "kept";
  std::ofstream(path / "README") << "kept";
  std::ofstream(path / ".pom-tmp-0") << "what a killed process left";
  EXPECT_EQ(replace_in_child("").error, "");
  EXPECT_EQ(read_all(path), "new");
  EXPECT_TRUE(fs::exists(path / "notes" / "mine") && fs::exists(path / "README"));
  EXPECT_FALSE(fs::exists(path / ".pom-tmp-0"));
}

TEST_F(Swap, ALinkToTheFolderStaysOne) {
  fs::create_directory(root / "far");
  fs::rename(path, root / "far" / "model");
  fs::create_directory_symlink(root / "far" / "model", path);
  EXPECT_EQ(replace_in_child("").error, "");
  EXPECT_TRUE(fs::is_symlink(path));
  EXPECT_EQ(read_all(path), "new");
}

TEST_F(Swap, AReaderHoldsWhatItOpened) {
  const OpenFolder folder(path, "test");
  const detail::FileDescriptor file = folder.open("config", "test");
  EXPECT_FALSE(folder.replaced());
  ASSERT_EQ(replace_in_child("").code, 0);
  EXPECT_TRUE(folder.replaced());
  EXPECT_EQ(contents(file), "old");
  EXPECT_FALSE(folder.has("weights")) << "removed with the old folder, and not taken from the new one";
}

// The reader's errors are those of a folder that was replaced under it, which it opens again.
TEST_F(Swap, AReaderBesideAWriterSeesOneOrTheOther) {
  const Ending ending = in_child("", [&] {
    std::atomic<bool> done = false;
    std::thread writer([&] {
      for (int i = 0; i < 200; ++i) replace(path, i % 2 == 0 ? "new" : "old");
      done = true;
    });
    std::string wrong;
    for (int reads = 0; !done || reads < 100; ++reads) {
      try {
        const std::string text = read_all(path);
        if (text != "old" && text != "new") wrong = text;
      } catch (const Error& error) {
        wrong = error.what();
      }
    }
    writer.join();
    check(wrong.empty(), wrong);
  });
  EXPECT_EQ(ending.error, "");
  EXPECT_EQ(ending.code, 0);
}

TEST_F(Swap, SaysWhatIsWrongWithAPath) {
  const auto message = [](auto&& work) {
    try {
      work();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string none = (root / "none").string(), file = (path / "config").string();
  EXPECT_EQ(message([&] { OpenFolder(none, "test"); }), "test: " + none + ": no such folder");
  EXPECT_EQ(message([&] { OpenFolder(file, "test"); }), "test: " + file + ": expected a folder, got a file");
  EXPECT_EQ(message([&] { OpenFolder(path, "test").open("x", "test read"); }),
            "test read: " + (path / "x").string() + ": cannot open: No such file or directory");
  EXPECT_EQ(message([&] { OpenFolder(path, "test").open("inner", "test read"); }),
            "test read: " + (path / "inner").string() + ": expected a regular file, got a folder");
}

}  // namespace
}  // namespace pom::io
