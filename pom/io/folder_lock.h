// A lock on a folder that one process holds at a time; the system lets it go when the process ends, however.
#pragma once

#include <filesystem>

#include "pom/io/file_descriptor.h"

namespace pom::io {

class FolderLock {
 public:
  // Makes `.lock` in the folder, which exists, and locks it, or throws pom::Error that says which process
  // holds it. The file stays; it is the lock on it that counts.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  detail::FileDescriptor file_;
};

}  // namespace pom::io
