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
//
// What a killed process had begun to write in a folder goes when a process first writes into that folder
// again: a temporary is locked while it is written, and one that nobody holds is nobody's.
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
  bool hold_temporary();
  void discard() noexcept;
  [[noreturn]] void fail(std::string_view step, int error);

  std::filesystem::path path_;
  std::string name_;               // of the destination within the folder
  std::string temporary_;          // likewise; empty once it has been renamed or removed
  detail::FileDescriptor folder_;  // held open, so that neither chdir nor a moved folder splits the two names
  detail::FileDescriptor file_;
  detail::FileDescriptor held_;  // the same file once more: its lock outlives the close, until the rename
};

// The whole of a small file in one call.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// Removes the temporaries of such writes from a folder that no living process holds, and nothing else. One
// that cannot be removed stays; so does what is in folders below.
void remove_temporaries(const std::filesystem::path& folder);

}  // namespace pom::io
