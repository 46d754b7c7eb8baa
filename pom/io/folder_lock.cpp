#include "pom/io/folder_lock.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/file.h>

#include "pom/base/error.h"

namespace pom::io {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& folder, std::string_view step, int error) {
  fail("folder lock: ", folder.string(), ": cannot ", step, ": ", detail::errno_text(error));
}

// What the holder wrote; it may be about to.
std::string holder(int file) {
  char digits[32];
  const ssize_t size = ::pread(file, digits, sizeof digits, 0);
  std::string pid(digits, size > 0 ? static_cast<std::size_t>(size) : 0);
  pid.resize(std::min(pid.find_first_not_of("0123456789"), pid.size()));
  return pid.empty() ? "another process" : "process " + pid;
}

}  // namespace

// flock and not fcntl's record locks: those are per process, and closing any descriptor of the file drops
// them.
FolderLock::FolderLock(const std::filesystem::path& folder, Hold hold, std::string_view part) {
  const std::string name = part.empty() ? ".lock" : pom::detail::concat(".", part, ".lock");
  const std::filesystem::path path = folder / name;
  file_ = detail::FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file_.is_open()) refuse(folder, "make " + name + " in it", errno);
  int result;
  do result = ::flock(file_.get(), (hold == Hold::shared ? LOCK_SH : LOCK_EX) | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK)
    fail("folder lock: ", folder.string(), part.empty() ? "" : ": ", part, " is held by ",
         holder(file_.get()));
  if (result != 0) refuse(folder, "lock its " + name, errno);
  // The number is for people, who do without it where the disk is full, or where it would be one of many.
  const std::string pid = hold == Hold::shared ? "\n" : std::to_string(::getpid()) + "\n";
  const bool empty = ::ftruncate(file_.get(), 0) == 0;
  [[maybe_unused]] const bool written = empty && ::pwrite(file_.get(), pid.data(), pid.size(), 0) > 0;
}

}  // namespace pom::io
