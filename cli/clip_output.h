// Where a clip goes: -o FILE, FOLDER or -, checked before the work and opened with the first frame, so that a
// run that fails before it leaves nothing behind.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "pom/io/clip.h"

namespace pom::cli {

class ClipOutput {
 public:
  // A file, a folder, or "-" for stdout. Throws UsageError or pom::Error for what cannot be written to.
  ClipOutput(std::filesystem::path path, bool replace);

  bool is_stdout() const { return path_ == "-"; }
  const std::filesystem::path& path() const { return path_; }

  // What the clip is, its size aside; before the first frame.
  void describe(const io::ClipOptions& options) { options_ = options; }
  void add(const io::Image& frame);
  void flush();
  void finish();  // where there was a frame
  bool finished() const { return finished_; }
  std::int64_t frames() const { return writer_ ? writer_->frames() : 0; }

 private:
  void open(const io::Image& frame);

  std::filesystem::path path_;
  io::ClipOptions options_;
  std::unique_ptr<io::ClipWriter> writer_;
  bool finished_ = false;
};

}  // namespace pom::cli
