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
  // `output` as -o has it; empty: out/{name}.mp4, or .gif where this build has no FFmpeg. Throws UsageError
  // or pom::Error for what cannot be written to.
  ClipOutput(const std::string& output, std::string_view name, bool replace);

  bool is_stdout() const { return path_ == "-"; }
  const std::filesystem::path& path() const { return path_; }

  // What the clip is, its size aside; before the first frame.
  void describe(const io::ClipOptions& options) { options_ = options; }
  void add(const io::Image& frame);
  void flush();
  void finish();  // where there was a frame
  std::int64_t frames() const { return writer_ ? writer_->frames() : 0; }

 private:
  void open(const io::Image& frame);

  std::filesystem::path path_;
  io::ClipOptions options_;
  std::unique_ptr<io::ClipWriter> writer_;
};

}  // namespace pom::cli
