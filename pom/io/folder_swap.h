// A folder of several files that is replaced as one. Who writes makes the new one beside it and exchanges the
// two; who reads holds the folder open and takes every file from the one it opened: the old or the new, never
// some of each, also where the writer is killed between any two of its steps.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "pom/base/error.h"
#include "pom/io/file_descriptor.h"

namespace pom::io {

// FolderSwap swap("run/model"); write files into swap.folder(), each synced (AtomicFile); swap.commit();
//
// What lies in the old folder and was not written anew is taken along. Any failure, and destruction without
// commit(), removes the new folder and leaves the old one alone. What a killed process leaves beside the
// folder is called ".pom-tmp-…", as an AtomicFile's is. One writer at a time. Errors are pom::Error naming
// the step, the path and the system's reason.
class FolderSwap {
 public:
  explicit FolderSwap(const std::filesystem::path& path);
  FolderSwap(const FolderSwap&) = delete;
  FolderSwap& operator=(const FolderSwap&) = delete;
  ~FolderSwap();

  const std::filesystem::path& folder() const { return temporary_; }
  void commit();

 private:
  void exchange();
  void rename_twice();
  void discard() noexcept;
  [[noreturn]] void fail(std::string_view step, int error);

  std::filesystem::path path_;       // without links, so that a link to the folder stays one
  std::filesystem::path temporary_;  // beside it: first the new folder, after the exchange the old one
};

// Where a file system cannot exchange, the old folder is set aside for a moment. This puts it back where a
// process was killed in that moment, and removes it where the new one is there. FolderSwap begins with it.
void restore_folder(const std::filesystem::path& path);

// A folder, held open.
class OpenFolder {
 public:
  // `operation` begins the messages.
  OpenFolder(std::filesystem::path path, std::string_view operation);

  const std::filesystem::path& path() const { return path_; }
  bool has(const std::string& name) const;
  // A regular file within it. Messages have its path.
  detail::FileDescriptor open(const std::string& name, std::string_view operation) const;
  std::string path_of(const std::string& name) const { return (path_ / name).string(); }
  // Whether another folder is at the path by now.
  bool replaced() const;

 private:
  std::filesystem::path path_;
  detail::FileDescriptor folder_;
};

// What `read` makes of the folder. Where that fails because the folder was replaced meanwhile, whose old
// files are then removed, it begins again with the new one.
template <class Read>
auto read_folder(const std::filesystem::path& path, std::string_view operation, Read&& read) {
  constexpr int most = 100;  // nobody replaces a folder so many times while a reader opens some files
  for (int attempt = 0;; ++attempt) {
    const OpenFolder folder(path, operation);
    try {
      return read(folder);
    } catch (const Error&) {
      if (attempt == most || !folder.replaced()) throw;
    }
  }
}

}  // namespace pom::io
