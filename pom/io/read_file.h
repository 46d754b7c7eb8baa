// Private to the room: a whole file of ordinary size in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pom/io/file_descriptor.h"

namespace pom::io::detail {

// A regular file, open for reading. Errors begin with `operation` and the path.
FileDescriptor open_for_reading(const std::filesystem::path& path, std::string_view operation);

// The same of what the system's open() has given, or -1 and errno; `name` is for messages.
FileDescriptor regular_file(int descriptor, std::string_view name, std::string_view operation);

// What the file holds; more than `most` bytes are an error.
std::vector<std::byte> read_file(const std::filesystem::path& path, std::string_view operation,
                                 std::uint64_t most = std::uint64_t{1} << 32);
std::vector<std::byte> read_file(const FileDescriptor& file, std::string_view name,
                                 std::string_view operation, std::uint64_t most);

// A regular file of which parts are read, never more than was asked for. Errors begin with site().
class FileParts {
 public:
  FileParts(const std::filesystem::path& path, std::string_view operation);

  const std::string& site() const { return site_; }  // "operation: path"
  std::uint64_t size() const { return size_; }       // when it was opened
  // `count` bytes from byte `offset` on; it is an error where the file ends before.
  std::string at(std::uint64_t offset, std::size_t count) const;
  // The same, and fewer where the file ends before.
  std::string up_to(std::uint64_t offset, std::size_t count) const;
  int descriptor() const { return file_.get(); }

 private:
  std::string site_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace pom::io::detail
