// A lock on a folder that one process holds at a time; the system lets it go when the process ends, however.
#pragma once

#include <filesystem>
#include <string_view>

#include "pom/io/file_descriptor.h"

namespace pom::io {

class FolderLock {
 public:
  // `shared` may be held by many at a time, but not beside an exclusive one.
  enum class Hold { exclusive, shared };

  // Makes `.lock` in the folder, which exists, and locks it, or throws pom::Error that says which process
  // holds it. The file stays; it is the lock on it that counts. With `part` the file is `.PART.lock`, for a
  // share of what is in the folder.
  explicit FolderLock(const std::filesystem::path& folder, Hold hold = Hold::exclusive,
                      std::string_view part = {});

 private:
  detail::FileDescriptor file_;
};

}  // namespace pom::io
