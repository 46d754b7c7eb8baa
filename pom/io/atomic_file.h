// A file that appears whole or not at all: written beside its destination, synced, then renamed over it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "pom/io/file_descriptor.h"

namespace pom::io {

// AtomicFile file("run/model.safetensors"); file.write(...); file.write(...); file.commit();
//
// Until commit() returns, readers of the path see what was there before. After it, the bytes survive a power
// cut. Any failure, and destruction without commit(), removes the temporary and leaves the destination alone;
// only a failure to sync the folder comes after the new file is in place. Errors are pom::Error naming the
// step, the path and the system's reason. The file gets the permissions of a new file; a symbolic link at the
// path is replaced, not followed. Not for two threads at once.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

  const std::filesystem::path& path() const { return path_; }

 private:
  void refuse_special_file();
  void create_temporary();
  void discard() noexcept;
  [[noreturn]] void fail(std::string_view step, int error);

  std::filesystem::path path_;
  std::string name_;               // of the destination within the folder
  std::string temporary_;          // likewise; empty once it has been renamed or removed
  detail::FileDescriptor folder_;  // held open, so that neither chdir nor a moved folder splits the two names
  detail::FileDescriptor file_;
};

// The whole of a small file in one call.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace pom::io
