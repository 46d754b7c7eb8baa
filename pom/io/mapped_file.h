// A file as memory that the system reads when it is looked at, for files that are larger than memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace pom::io {

class MappedFile {
 public:
  // A regular file with something in it; errors begin with `operation` and the path. Whoever makes the file
  // shorter while it is mapped ends the process that looks there.
  MappedFile(const std::filesystem::path& path, std::string_view operation);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view view() const { return {static_cast<const char*>(memory_), size_}; }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace pom::io
