// The steps of replacing a folder, with a failpoint before each: tests of crashes stop there.
#include "pom/io/folder_swap.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <random>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include "pom/base/failpoint.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view temporary_prefix = ".pom-tmp-";

fs::path without_links(const fs::path& path) {
  std::error_code error;
  fs::path plain = fs::weakly_canonical(path.has_filename() ? path : path.parent_path(), error);
  return error ? path : plain;
}

// Where the old folder waits while the new one takes its place, on file systems that cannot exchange.
fs::path aside_of(const fs::path& path) {
  return path.parent_path() / (".pom-old-" + path.filename().string());
}

fs::path random_sibling(const fs::path& path) {
  std::random_device entropy;
  const std::uint64_t number = std::uint64_t{entropy()} << 32 | entropy();
  char digits[24];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
  return path.parent_path() / (std::string(temporary_prefix) + digits);
}

// Each returns 0 or the errno of what went wrong.

int rename_to(const fs::path& from, const fs::path& to, const char* point) {
  if (const int error = failpoint(point)) return error;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int exchange_with(const fs::path& one, const fs::path& other) {
  if (const int error = failpoint("folder_swap.exchange")) return error;
  return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0 ? 0 : errno;
}

int sync_folder(const fs::path& folder, const char* point) {
  if (const int error = failpoint(point)) return error;
  const detail::FileDescriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!open.is_open()) return errno;
  while (::fsync(open.get()) != 0)
    if (errno != EINTR) return errno == EINVAL ? 0 : errno;  // some file systems cannot sync a folder
  return 0;
}

// What others put into the folder, as links to the same files; copies where the file system has no links.
int take_along(const fs::path& from, const fs::path& to) {
  if (const int error = failpoint("folder_swap.take_along")) return error;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(from, error)) {
    const fs::path name = entry.path().filename();
    if (name.string().starts_with(temporary_prefix) || fs::exists(fs::symlink_status(to / name))) continue;
    constexpr auto how = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
    fs::copy(entry.path(), to / name, how | fs::copy_options::create_hard_links, error);
    if (error) fs::copy(entry.path(), to / name, how | fs::copy_options::overwrite_existing, error);
    if (error) return error.value();
  }
  return error && error != std::errc::no_such_file_or_directory ? error.value() : 0;
}

}  // namespace

FolderSwap::FolderSwap(const fs::path& path) : path_(without_links(path)) {
  check(path_.has_filename() && path_.filename() != "." && path_.filename() != "..",
        "replace folder: path: expected the name of a folder, got \"", path.string(), "\"");
  restore_folder(path_);
  const fs::path wanted = random_sibling(path_);
  if (const int error = failpoint("folder_swap.create")) fail("create a folder next to it", error);
  if (::mkdir(wanted.c_str(), 0777) != 0) fail("create a folder next to it", errno);
  temporary_ = wanted;
}

FolderSwap::~FolderSwap() {
  discard();
}

void FolderSwap::commit() {
  check(!temporary_.empty(), "replace folder: ", path_.string(), ": commit after commit or after a failure");
  if (const int error = take_along(path_, temporary_)) fail("take along what lies in it", error);
  if (const int error = sync_folder(temporary_, "folder_swap.sync")) fail("sync the new one", error);
  exchange();
  if (const int error = sync_folder(path_.parent_path(), "folder_swap.sync_folder"))
    fail("sync the folder around it", error);
  failpoint("folder_swap.remove");
  discard();
}

void FolderSwap::exchange() {
  const int error = exchange_with(temporary_, path_);
  if (error == ENOENT) {  // nothing to replace
    if (const int again = rename_to(temporary_, path_, "folder_swap.rename"))
      fail("rename into place", again);
    temporary_.clear();
  } else if (error == EINVAL || error == ENOSYS || error == ENOTSUP) {
    rename_twice();
  } else if (error != 0) {
    fail("exchange it with the new one", error);
  }
}

void FolderSwap::rename_twice() {
  const fs::path aside = aside_of(path_);
  if (const int error = rename_to(path_, aside, "folder_swap.aside")) fail("set the old one aside", error);
  if (const int error = rename_to(temporary_, path_, "folder_swap.rename")) {
    ::rename(aside.c_str(), path_.c_str());
    fail("rename into place", error);
  }
  temporary_ = aside;
}

void FolderSwap::discard() noexcept {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  temporary_.clear();
}

void FolderSwap::fail(std::string_view step, int error) {
  discard();
  pom::fail("replace folder: ", path_.string(), ": cannot ", step, ": ", detail::errno_text(error));
}

void restore_folder(const fs::path& folder) {
  const fs::path path = without_links(folder), aside = aside_of(path);
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(aside, error))) return;
  if (fs::exists(fs::symlink_status(path, error))) {
    fs::remove_all(aside, error);
    return;
  }
  check(::rename(aside.c_str(), path.c_str()) == 0, "replace folder: ", path.string(),
        ": cannot put back what was set aside: ", detail::errno_text(errno));
}

OpenFolder::OpenFolder(fs::path path, std::string_view operation) : path_(std::move(path)) {
  const auto open = [](const fs::path& folder) {
    return detail::FileDescriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  };
  folder_ = open(path_);
  if (!folder_.is_open() && errno == ENOENT) folder_ = open(aside_of(without_links(path_)));
  if (!folder_.is_open() && errno == ENOENT) folder_ = open(path_);  // which may be back by now
  if (folder_.is_open()) return;
  const int error = errno;
  check(error != ENOENT, operation, ": ", path_.string(), ": no such folder");
  check(error != ENOTDIR, operation, ": ", path_.string(), ": expected a folder, got a file");
  pom::fail(operation, ": ", path_.string(), ": cannot open: ", detail::errno_text(error));
}

bool OpenFolder::has(const std::string& name) const {
  struct stat status;
  return ::fstatat(folder_.get(), name.c_str(), &status, 0) == 0;
}

detail::FileDescriptor OpenFolder::open(const std::string& name, std::string_view operation) const {
  return detail::regular_file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK),
                              path_of(name), operation);
}

bool OpenFolder::replaced() const {
  struct stat opened, there;
  if (::fstat(folder_.get(), &opened) != 0) return false;
  if (::stat(path_.c_str(), &there) != 0) return errno == ENOENT;
  return opened.st_dev != there.st_dev || opened.st_ino != there.st_ino;
}

}  // namespace pom::io
