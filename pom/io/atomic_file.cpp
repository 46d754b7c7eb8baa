// The steps of an atomic write, one function each, with a failpoint before it: tests of crashes stop there.
#include "pom/io/atomic_file.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <random>
#include <sys/stat.h>
#include <utility>

#include "pom/base/error.h"
#include "pom/base/failpoint.h"

namespace pom::io {
namespace {

// Each returns 0 or the errno of what went wrong.

int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return EIO;  // no progress and no reason given: not worth spinning on
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

// As write_all, and where it is to fail, with half of the bytes written: a file that is really torn.
int write_piece(int fd, std::span<const std::byte> bytes) {
  if (!failpoint_is_set("atomic_file.write")) return write_all(fd, bytes);
  const std::size_t half = bytes.size() / 2;
  if (const int error = write_all(fd, bytes.first(half))) return error;
  if (const int error = failpoint("atomic_file.write")) return error;
  return write_all(fd, bytes.subspan(half));
}

int sync(int fd) {
  while (::fsync(fd) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

int sync_file(int fd) {
  if (const int error = failpoint("atomic_file.sync")) return error;
  return sync(fd);
}

int close_file(detail::FileDescriptor& file) {
  if (const int error = failpoint("atomic_file.close")) return error;
  return file.close() ? 0 : errno;
}

int rename_within(int folder, const std::string& from, const std::string& to) {
  if (const int error = failpoint("atomic_file.rename")) return error;
  return ::renameat(folder, from.c_str(), folder, to.c_str()) == 0 ? 0 : errno;
}

int sync_folder(int folder) {
  if (const int error = failpoint("atomic_file.sync_folder")) return error;
  const int error = sync(folder);
  return error == EINVAL ? 0 : error;  // some file systems cannot sync a folder, and say so this way
}

// Of a fixed length, so that it fits wherever the destination's own name does.
std::string random_temporary_name() {
  std::random_device entropy;
  const std::uint64_t number = std::uint64_t{entropy()} << 32 | entropy();
  char name[32];
  std::snprintf(name, sizeof name, ".pom-tmp-%016llx", static_cast<unsigned long long>(number));
  return name;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), name_(path_.filename().string()) {
  check(!name_.empty() && name_ != "." && name_ != "..",
        "atomic write: path: expected the name of a file, got \"", path_.string(), "\"");
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  folder_ = detail::FileDescriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_.is_open()) fail("open its folder", errno);
  refuse_special_file();
  create_temporary();
}

AtomicFile::~AtomicFile() {
  discard();
}

// A rename onto a device or a pipe would destroy it: "-o /dev/stdout" must not.
void AtomicFile::refuse_special_file() {
  struct stat present;
  if (::fstatat(folder_.get(), name_.c_str(), &present, 0) == 0) {
    check(S_ISREG(present.st_mode), "atomic write: ", path_.string(),
          ": expected a regular file or nothing there, got ",
          S_ISDIR(present.st_mode) ? "a folder" : "a device, pipe or socket");
  } else if (errno != ENOENT) {
    fail("look for it", errno);
  }
}

void AtomicFile::create_temporary() {
  constexpr std::string_view step = "create a temporary file in its folder";
  if (const int error = failpoint("atomic_file.create")) fail(step, error);
  for (int attempt = 0;; ++attempt) {
    const std::string name = random_temporary_name();
    // openat and not mkstemp: the file shall have the permissions of any new file, not 0600.
    file_ = detail::FileDescriptor(
        ::openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file_.is_open()) {
      temporary_ = name;
      return;
    }
    if (errno != EEXIST || attempt == 16) fail(step, errno);
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  check(file_.is_open(), "atomic write: ", path_.string(), ": write after commit or after a failure");
  if (const int error = write_piece(file_.get(), bytes)) fail("write", error);
}

void AtomicFile::commit() {
  check(file_.is_open(), "atomic write: ", path_.string(), ": commit after commit or after a failure");
  if (const int error = sync_file(file_.get())) fail("sync", error);
  if (const int error = close_file(file_)) fail("close", error);
  if (const int error = rename_within(folder_.get(), temporary_, name_)) fail("rename into place", error);
  temporary_.clear();
  if (const int error = sync_folder(folder_.get())) fail("sync its folder", error);
}

void AtomicFile::discard() noexcept {
  file_ = detail::FileDescriptor();
  if (!temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
  temporary_.clear();
}

// Discards at once: a caller who catches the error can no longer commit half a file.
void AtomicFile::fail(std::string_view step, int error) {
  discard();
  pom::fail("atomic write: ", path_.string(), ": cannot ", step, ": ", detail::errno_text(error));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace pom::io
