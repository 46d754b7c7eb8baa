// Tests of atomic writing: what a reader of the path sees, what is left behind, and what the errors say.
#include "pom/io/atomic_file.h"

#include "tests/base/child.h"
#include <csignal>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>

#include "pom/base/error.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;
using pom::testing::in_child;

std::string contents(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

class AtomicFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-atomic-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override {
    fs::permissions(folder, fs::perms::owner_all);
    fs::remove_all(folder);
  }

  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }

  // The message of the pom::Error that the action must throw.
  template <class Action>
  static std::string error_of(Action action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "no pom::Error was thrown";
    return "";
  }

  fs::path folder;
};

void expect_parts(const std::string& message, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks " << part;
}

// Files may grow to `bytes` while this lives: the disk is full after that, as far as write() is concerned.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

TEST_F(AtomicFileTest, AppearsOnlyOnCommit) {
  const fs::path path = folder / "a.bin";
  AtomicFile file(path);
  file.write("one ");
  file.write("two");
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(files(), 1u);  // the temporary
  file.commit();
  EXPECT_EQ(contents(path), "one two");
  EXPECT_EQ(files(), 1u);
}

TEST_F(AtomicFileTest, ReplacesWholeFile) {
  const fs::path path = folder / "a.txt";
  write_file_atomically(path, "a long first version");
  std::ifstream reader(path);
  write_file_atomically(path, "short");
  EXPECT_EQ(contents(path), "short");
  std::ostringstream old;  // who had it open keeps the old one
  old << reader.rdbuf();
  EXPECT_EQ(old.str(), "a long first version");
}

TEST_F(AtomicFileTest, WritesEmptyAndBinaryFiles) {
  write_file_atomically(folder / "empty", "");
  EXPECT_EQ(fs::file_size(folder / "empty"), 0u);
  const std::string zeros("\0a\0", 3);
  write_file_atomically(folder / "zeros", zeros);
  EXPECT_EQ(contents(folder / "zeros"), zeros);
}

TEST_F(AtomicFileTest, WritesManyMegabytes) {
  std::string block(1 << 20, 'x');
  AtomicFile file(folder / "big");
  for (int i = 0; i < 8; ++i) {
    block[0] = static_cast<char>('a' + i);
    file.write(block);
  }
  file.commit();
  const std::string all = contents(folder / "big");
  ASSERT_EQ(all.size(), 8u << 20);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(all[i << 20], static_cast<char>('a' + i));
}

TEST_F(AtomicFileTest, LeavesNothingWithoutCommit) {
  const fs::path path = folder / "a.txt";
  write_file_atomically(path, "old");
  try {
    AtomicFile file(path);
    file.write("half of the new");
    throw std::runtime_error("the caller's own failure");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(AtomicFileTest, HasPermissionsOfNewFile) {
  const mode_t mask = ::umask(027);
  write_file_atomically(folder / "a", "x");
  ::umask(mask);
  struct stat status;
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0640u);
}

TEST_F(AtomicFileTest, SurvivesChangeOfDirectory) {
  const fs::path before = fs::current_path();
  fs::create_directory(folder / "elsewhere");
  fs::current_path(folder);
  AtomicFile file("relative");
  file.write("x");
  fs::current_path(folder / "elsewhere");
  file.commit();
  fs::current_path(before);
  EXPECT_EQ(contents(folder / "relative"), "x");
}

TEST_F(AtomicFileTest, AcceptsLongestName) {
  const fs::path path = folder / std::string(255, 'n');
  write_file_atomically(path, "x");
  EXPECT_EQ(contents(path), "x");
}

TEST_F(AtomicFileTest, ReplacesSymbolicLinkAndKeepsItsTarget) {
  write_file_atomically(folder / "target", "old");
  fs::create_symlink(folder / "target", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_FALSE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(contents(folder / "link"), "new");
  EXPECT_EQ(contents(folder / "target"), "old");
}

TEST_F(AtomicFileTest, ParallelWritersLeaveOneWholeVersion) {
  const fs::path path = folder / "a";
  std::vector<std::thread> threads;
  for (char c = 'a'; c < 'a' + 4; ++c)
    threads.emplace_back([&, c] {
      for (int i = 0; i < 8; ++i) write_file_atomically(path, std::string(100'000, c));
    });
  for (std::thread& thread : threads) thread.join();
  const std::string all = contents(path);
  EXPECT_EQ(all, std::string(100'000, all.at(0)));
  EXPECT_EQ(files(), 1u);
}

TEST_F(AtomicFileTest, FullDiskLeavesOldFile) {
  const fs::path path = folder / "a";
  write_file_atomically(path, "old");
  const FileSizeLimit limit(4096);
  AtomicFile file(path);
  file.write(std::string(4000, 'x'));
  const std::string message = error_of([&] { file.write(std::string(4000, 'y')); });
  expect_parts(message, {"atomic write", path.string(), "cannot write", "File too large"});
  EXPECT_EQ(files(), 1u) << "the temporary must go at once, not with the object";
  EXPECT_EQ(contents(path), "old");
}

TEST_F(AtomicFileTest, CannotCommitHalfAFile) {
  const fs::path path = folder / "a";
  const FileSizeLimit limit(10);
  AtomicFile file(path);
  error_of([&] { file.write(std::string(100, 'x')); });
  expect_parts(error_of([&] { file.commit(); }), {path.string(), "commit after"});
  expect_parts(error_of([&] { file.write("x"); }), {path.string(), "write after"});
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(AtomicFileTest, RefusesSecondCommit) {
  AtomicFile file(folder / "a");
  file.write("x");
  file.commit();
  error_of([&] { file.commit(); });
  error_of([&] { file.write("y"); });
  EXPECT_EQ(contents(folder / "a"), "x");
}

TEST_F(AtomicFileTest, MissingFolder) {
  const fs::path path = folder / "none" / "a";
  expect_parts(error_of([&] { AtomicFile file(path); }),
               {path.string(), "cannot open its folder", "No such file or directory"});
  write_file_atomically(folder / "file", "x");
  expect_parts(error_of([&] { AtomicFile file(folder / "file" / "a"); }), {"Not a directory"});
}

TEST_F(AtomicFileTest, UnwritableFolder) {
  if (::geteuid() == 0) {
    // Root may write anywhere but here.
    expect_parts(error_of([] { AtomicFile file("/proc/self/a"); }),
                 {"/proc/self/a", "cannot create a temporary file"});
    return;
  }
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
  expect_parts(error_of([&] { AtomicFile file(folder / "a"); }),
               {(folder / "a").string(), "cannot create a temporary file", "Permission denied"});
}

TEST_F(AtomicFileTest, RefusesWhatIsNoRegularFile) {
  fs::create_directory(folder / "sub");
  expect_parts(error_of([&] { AtomicFile file(folder / "sub"); }), {"sub", "got a folder"});
  expect_parts(error_of([] { AtomicFile file("/dev/null"); }), {"/dev/null", "got a device"});
  expect_parts(error_of([] { AtomicFile file("/dev/full"); }), {"/dev/full", "got a device"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_parts(error_of([&] { AtomicFile file(folder / "pipe"); }), {"pipe", "got a device"});
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  EXPECT_EQ(files(), 2u);
}

TEST_F(AtomicFileTest, RefusesPathsWithoutName) {
  for (const char* path : {"", ".", "..", "/", "/tmp/"})
    expect_parts(error_of([&] { AtomicFile file(path); }), {"expected the name of a file"});
}

TEST_F(AtomicFileTest, RefusesTooLongNameBeforeWriting) {
  expect_parts(error_of([&] { AtomicFile file(folder / std::string(256, 'n')); }), {"File name too long"});
  EXPECT_EQ(files(), 0u);
}

TEST_F(AtomicFileTest, FailedRenameRemovesTemporary) {
  const fs::path path = folder / "a";
  AtomicFile file(path);
  file.write("x");
  fs::create_directory(path);  // somebody was faster
  expect_parts(error_of([&] { file.commit(); }), {path.string(), "cannot rename into place"});
  EXPECT_EQ(files(), 1u);
  EXPECT_TRUE(fs::is_directory(path));
}

// ---- what killed processes left ----

TEST_F(AtomicFileTest, WhatAKilledProcessLeftGoesWithTheNextWrite) {
  const fs::path left = folder / ".pom-tmp-0123456789abcdef";
  std::ofstream(left) << "half";
  write_file_atomically(folder / "a", "x");
  EXPECT_FALSE(fs::exists(left));
  std::ofstream(left) << "half";
  write_file_atomically(folder / "a", "y");
  EXPECT_TRUE(fs::exists(left)) << "a folder is looked through once, not for each of its files";
}

TEST_F(AtomicFileTest, ATemporaryInUseStays) {
  AtomicFile file(folder / "a");
  file.write("half");
  EXPECT_EQ(in_child("", [&] { remove_temporaries(folder); }).code, 0);
  remove_temporaries(folder);
  file.write(" and half");
  file.commit();
  EXPECT_EQ(contents(folder / "a"), "half and half");
}

TEST_F(AtomicFileTest, OnlyOurOwnTemporariesGo) {
  const std::vector<std::string> others = {".pom-tmp-notes", ".pom-tmp-0123456789abcdeg", "notes.txt",
                                           ".pom-tmp-0123456789abcdef0", "x.pom-tmp-0123456789abcdef"};
  for (const std::string& name : others) std::ofstream(folder / name) << "mine";
  fs::create_directory(folder / ".pom-tmp-00000000000000aa");
  fs::create_symlink(folder / "notes.txt", folder / ".pom-tmp-00000000000000bb");
  ASSERT_EQ(::mkfifo((folder / ".pom-tmp-00000000000000cc").c_str(), 0600), 0);
  std::ofstream(folder / ".pom-tmp-00000000000000dd") << "half";
  const std::size_t before = files();
  remove_temporaries(folder);
  EXPECT_EQ(files(), before - 1);
  EXPECT_FALSE(fs::exists(folder / ".pom-tmp-00000000000000dd"));
  EXPECT_NO_THROW(remove_temporaries(folder / "none"));
}

}  // namespace
}  // namespace pom::io
