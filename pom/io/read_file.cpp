#include "pom/io/read_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>

#include "pom/base/error.h"

namespace pom::io::detail {

FileDescriptor open_for_reading(const std::filesystem::path& path, std::string_view operation) {
  // Without O_NONBLOCK opening a pipe would wait for somebody to write to it.
  return regular_file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path.string(), operation);
}

FileDescriptor regular_file(int descriptor, std::string_view name, std::string_view operation) {
  FileDescriptor file(descriptor);
  check(file.is_open(), operation, ": ", name, ": cannot open: ", errno_text(errno));
  struct stat status;
  check(::fstat(file.get(), &status) == 0, operation, ": ", name, ": ", errno_text(errno));
  check(S_ISREG(status.st_mode), operation, ": ", name, ": expected a regular file, got ",
        S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket");
  return file;
}

std::vector<std::byte> read_file(const std::filesystem::path& path, std::string_view operation,
                                 std::uint64_t most) {
  return read_file(open_for_reading(path, operation), path.string(), operation, most);
}

std::vector<std::byte> read_file(const FileDescriptor& file, std::string_view name,
                                 std::string_view operation, std::uint64_t most) {
  struct stat status = {};
  ::fstat(file.get(), &status);
  // One byte more than the system says, so that the end is seen; files of /proc say 0 and are longer.
  std::vector<std::byte> bytes(std::min(static_cast<std::uint64_t>(status.st_size), most) + 1);
  for (std::size_t filled = 0;;) {
    const ssize_t got = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, operation, ": ", name, ": cannot read: ", errno_text(errno));
    filled += static_cast<std::size_t>(got);
    check(filled <= most, operation, ": ", name, ": expected at most ", most, " bytes, got more");
    if (got == 0) {
      bytes.resize(filled);
      return bytes;
    }
    if (filled == bytes.size()) bytes.resize(filled + filled / 2 + 4096);
  }
}

FileParts::FileParts(const std::filesystem::path& path, std::string_view operation)
    : site_(::pom::detail::concat(operation, ": ", path.string())), file_(open_for_reading(path, operation)) {
  struct stat status = {};
  check(::fstat(file_.get(), &status) == 0, site_, ": ", errno_text(errno));
  size_ = static_cast<std::uint64_t>(status.st_size);
}

std::string FileParts::up_to(std::uint64_t offset, std::size_t count) const {
  std::string bytes(offset < size_ ? std::min<std::uint64_t>(count, size_ - offset) : 0, '\0');
  for (std::size_t filled = 0; filled < bytes.size();) {
    const ssize_t got = ::pread(file_.get(), bytes.data() + filled, bytes.size() - filled,
                                static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, site_, ": cannot read: ", errno_text(errno));
    if (got == 0) bytes.resize(filled);  // it has become shorter
    filled += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string FileParts::at(std::uint64_t offset, std::size_t count) const {
  std::string bytes = up_to(offset, count);
  check(bytes.size() == count, site_, ": truncated: expected ", count, " bytes at byte ", offset,
        ", and the file has ", size_);
  return bytes;
}

}  // namespace pom::io::detail
