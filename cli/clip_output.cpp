#include "cli/clip_output.h"

#include <algorithm>
#include <cctype>
#include <system_error>
#include <unistd.h>

#include "cli/command.h"
#include "cli/output_names.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

// "000012.png", as frames of a clip are called.
bool is_frame_name(const fs::path& file) {
  const std::string stem = file.stem().string();
  return file.extension() == ".png" && stem.size() >= 6 &&
         std::ranges::all_of(stem, [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<fs::path> frames_in(const fs::path& folder) {
  std::vector<fs::path> frames;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (is_frame_name(entry.path())) frames.push_back(entry.path());
  return frames;
}

void check_place(const fs::path& path, bool replace) {
  std::error_code ignored;
  const fs::file_type type = fs::status(path, ignored).type();
  if (type == fs::file_type::fifo || type == fs::file_type::character) return;  // a reader waits there
  if (type != fs::file_type::directory) return check_outputs(std::vector{path}, replace);
  const std::vector<fs::path> there = frames_in(path);
  if (!there.empty() && !replace)
    throw UsageError(
        detail::concat("--output: ", path.string(), " has frames in it already; -y replaces them"));
  check_outputs(std::vector{path / "000000.png"}, true);
}

}  // namespace

ClipOutput::ClipOutput(const std::string& output, std::string_view name, bool replace) : path_(output) {
  if (is_stdout()) {
    if (::isatty(STDOUT_FILENO) != 0)
      throw UsageError(
          "--output: expected a pipe or a file behind -, which writes raw frames, got a terminal");
    return;
  }
  if (output.empty()) path_ = "out/" + file_safe(name) + (io::clip_libraries().empty() ? ".gif" : ".mp4");
  if (!path_.has_filename()) path_ = path_.parent_path();  // "frames/"
  as_usage([&] { io::check_clip_name(path_); });
  check_place(path_, replace);
}

// Frames of a longer clip that was there before would play at the end of this one.
void ClipOutput::open(const io::Image& frame) {
  options_.width = frame.width, options_.height = frame.height;
  if (is_stdout()) {
    writer_ = io::open_y4m(STDOUT_FILENO, options_);
    return;
  }
  make_folder_of(path_);
  std::error_code ignored;
  if (fs::is_directory(path_, ignored))
    for (const fs::path& old : frames_in(path_)) fs::remove(old);
  writer_ = io::open_clip(path_, options_);
}

void ClipOutput::add(const io::Image& frame) {
  if (!writer_) open(frame);
  writer_->add(frame);
}

void ClipOutput::flush() {
  if (writer_) writer_->flush();
}

void ClipOutput::finish() {
  if (writer_) writer_->finish();
}

}  // namespace pom::cli
