// The steps of an atomic write, one function each, with a failpoint before it: tests of crashes stop there.
#include "pom/io/atomic_file.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <sys/file.h>
#include <sys/stat.h>
#include <tuple>
#include <utility>
#include <vector>

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

constexpr std::string_view temporary_prefix = ".pom-tmp-";
constexpr std::size_t temporary_digits = 16;

// Of a fixed length, so that it fits wherever the destination's own name does.
std::string random_temporary_name() {
  std::random_device entropy;
  const std::uint64_t number = std::uint64_t{entropy()} << 32 | entropy();
  char digits[temporary_digits + 1];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
  return std::string(temporary_prefix) + digits;
}

bool is_temporary_name(std::string_view name) {
  return name.starts_with(temporary_prefix) && name.size() == temporary_prefix.size() + temporary_digits &&
         name.find_first_not_of("0123456789abcdef", temporary_prefix.size()) == std::string_view::npos;
}

// ---- what killed processes left ----

// Each returns 0 or an errno, here too.
int lock(int fd) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

// Where the lock is to be had, nobody writes it. A file system without locks keeps its temporaries.
void remove_unless_held(int folder, const std::string& name) {
  struct stat status;
  if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return;
  const detail::FileDescriptor file(
      ::openat(folder, name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.is_open() && lock(file.get()) == 0) ::unlinkat(folder, name.c_str(), 0);
}

std::vector<std::string> temporaries_in(int folder) {
  std::vector<std::string> names;
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // which closedir closes
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(own < 0 ? nullptr : ::fdopendir(own), ::closedir);
  if (!entries) return names;
  while (const dirent* entry = ::readdir(entries.get()))
    if (is_temporary_name(entry->d_name)) names.emplace_back(entry->d_name);
  return names;
}

void remove_temporaries_in(int folder) {
  for (const std::string& name : temporaries_in(folder)) remove_unless_held(folder, name);
}

// Once in a process: a folder of a million files is not listed a million times. The name is for folders that
// were removed, whose numbers others get.
void remove_temporaries_once(int folder, const std::string& name) {
  static std::mutex mutex;
  static std::set<std::tuple<dev_t, ino_t, std::string>> seen;
  struct stat status;
  if (::fstat(folder, &status) != 0) return;
  {
    const std::lock_guard guard(mutex);
    if (!seen.emplace(status.st_dev, status.st_ino, name).second) return;
  }
  remove_temporaries_in(folder);
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
  remove_temporaries_once(folder_.get(), folder.string());
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
    if (!file_.is_open() && (errno != EEXIST || attempt == 16)) fail(step, errno);
    if (!file_.is_open()) continue;
    temporary_ = name;
    if (hold_temporary()) return;
    discard();
    if (attempt == 16) fail(step, EAGAIN);
  }
}

// False where somebody who removes what is left over was faster than our lock.
bool AtomicFile::hold_temporary() {
  const int error = lock(file_.get());
  struct stat status;
  const bool gone = ::fstat(file_.get(), &status) == 0 && status.st_nlink == 0;
  if (error == EWOULDBLOCK || gone) return false;
  held_ = detail::FileDescriptor(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
  return true;
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
  held_ = detail::FileDescriptor();
  if (const int error = sync_folder(folder_.get())) fail("sync its folder", error);
}

void AtomicFile::discard() noexcept {
  if (!temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
  temporary_.clear();
  file_ = detail::FileDescriptor();
  held_ = detail::FileDescriptor();
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

void remove_temporaries(const std::filesystem::path& folder) {
  const detail::FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.is_open()) remove_temporaries_in(opened.get());
}

}  // namespace pom::io
