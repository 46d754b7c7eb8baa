#include "cli/clip_output.h"

#include <system_error>
#include <unistd.h>

#include "cli/command.h"
#include "cli/output_names.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

void check_place(const fs::path& path, bool replace) {
  std::error_code ignored;
  const fs::file_type type = fs::status(path, ignored).type();
  if (type == fs::file_type::fifo || type == fs::file_type::character) return;  // a reader waits there
  if (type != fs::file_type::directory) return check_outputs(std::vector{path}, replace);
  const io::FramesInFolder there = io::frames_in(path);
  if (there.others > 0)
    throw UsageError(
        detail::concat("--output: ", path.string(), " holds ", there.first_other,
                       there.others > 1 ? detail::concat(" and ", there.others - 1, " more") : "",
                       ", named like frames but not listed in clip.json; write into another folder, or move "
                       "them"));
  if (there.written > 0 && !replace)
    throw UsageError(
        detail::concat("--output: ", path.string(), " already holds frames; use -y to overwrite"));
  check_outputs(std::vector{path / "000000.png"}, true);
}

}  // namespace

ClipOutput::ClipOutput(fs::path path, bool replace) : path_(std::move(path)) {
  if (!is_stdout())
    check_place(path_, replace);
  else if (::isatty(STDOUT_FILENO) != 0)
    throw UsageError("--output: - writes raw frames: expected a pipe or a file, got a terminal");
}

void ClipOutput::open(const io::Image& frame) {
  options_.width = frame.width, options_.height = frame.height;
  if (is_stdout()) {
    writer_ = io::open_y4m(STDOUT_FILENO, options_);
    return;
  }
  make_folder_of(path_);
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
  finished_ = true;
}

}  // namespace pom::cli
