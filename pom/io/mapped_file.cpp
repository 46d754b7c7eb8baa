#include "pom/io/mapped_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "pom/base/error.h"
#include "pom/io/file_descriptor.h"

namespace pom::io {

MappedFile::MappedFile(const std::filesystem::path& path, std::string_view operation) {
  const detail::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  check(file.is_open(), operation, ": ", path.string(), ": cannot be opened: ", detail::errno_text(errno));
  struct stat status {};
  check(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), operation, ": ", path.string(),
        ": expected a file, got something else");
  size_ = static_cast<std::size_t>(status.st_size);
  check(size_ > 0, operation, ": ", path.string(),
        ": expected a file with something in it, got an empty one");
  memory_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  check(memory_ != MAP_FAILED, operation, ": ", path.string(),
        ": cannot be mapped: ", detail::errno_text(errno));
}

MappedFile::~MappedFile() {
  if (memory_ && memory_ != MAP_FAILED) ::munmap(memory_, size_);
}

}  // namespace pom::io
