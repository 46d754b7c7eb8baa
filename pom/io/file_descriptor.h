// An open file of the operating system that closes itself, and the words of an errno.
#pragma once

#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace pom::io::detail {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

  // False with errno set when the system reports a late write error. The descriptor is gone either way.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_ = -1;
};

inline std::string errno_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace pom::io::detail
