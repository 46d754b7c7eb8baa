// What all writers share, and which of them a name asks for.
#include "pom/io/clip.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "pom/io/clip_sink.h"
#include "pom/io/clip_writers.h"
#include "pom/io/picture.h"
#include "pom/io/text_comment.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;

std::string ending_of(const fs::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

bool is_folder_name(const fs::path& path) {
  std::error_code error;
  return path.extension().empty() || !path.has_filename() || fs::is_directory(path, error);
}

void check_options(const std::string& name, const ClipOptions& options) {
  check_size("clip write: " + name, options.width, options.height);
  check(options.fps > 0 && options.fps <= 1000, "clip write: ", name,
        ": fps: expected above 0 and at most 1000, got ", options.fps);
  check(options.quality >= 1 && options.quality <= 100, "clip write: ", name,
        ": quality: expected 1 to 100, got ", options.quality);
  detail::check_text("clip write: " + name, options.text);
}

}  // namespace

ClipWriter::ClipWriter(std::string name, const ClipOptions& options)
    : name_(std::move(name)), options_(options) {
  check_options(name_, options_);
}

void ClipWriter::check_open(const char* operation) const {
  check(!broken_ && !finished_, "clip write: ", name_, ": ", operation, " after ",
        broken_ ? "a failure" : "finish");
}

template <class Action>
void ClipWriter::guarded(Action&& action) {
  try {
    action();
  } catch (...) {
    broken_ = true;
    throw;
  }
}

void ClipWriter::add(const Image& frame) {
  check_open("add");
  check_image("clip write: " + name_, frame);
  check(frame.width == options_.width && frame.height == options_.height && frame.channels == 3 &&
            frame.bits == 8,
        "clip write: ", name_, ": frame: expected 8-bit RGB of ", options_.width, "x", options_.height,
        ", got ", frame.channels, " channels of ", frame.bits, " bits, ", frame.width, "x", frame.height);
  guarded([&] {
    put(frame);
    ++frames_;
    const auto second = std::max<std::int64_t>(1, std::llround(options_.fps));
    if (options_.growing && frames_ % second == 0) put_out();
  });
}

void ClipWriter::flush() {
  check_open("flush");
  guarded([&] {
    if (options_.growing) put_out();
  });
}

void ClipWriter::finish() {
  check_open("finish");
  check(frames_ > 0, "clip write: ", name_, ": expected at least one frame, got none");
  guarded([&] { end(); });
  finished_ = true;
}

bool is_clip_file_name(const fs::path& path) {
  const std::string ending = ending_of(path);
  return ending == ".mp4" || ending == ".webm" || ending == ".gif" || ending == ".y4m";
}

void check_clip_name(const fs::path& path) {
  const std::string ending = ending_of(path);
  const std::string operation = "clip write: " + path.string();
  check(is_clip_file_name(path) || is_folder_name(path), operation,
        ": expected a name that ends in .mp4, .webm, .gif or .y4m, or a folder, got \"",
        path.extension().string(), "\"");
  if (ending == ".mp4" || ending == ".webm") detail::check_encoder(operation, ending.substr(1));
  check(is_clip_file_name(path) || !picture_libraries().empty(), operation,
        ": this libpom was built without pictures: install libpng-dev and libjpeg-dev and build it again, or "
        "write "
        ".gif or .y4m");
}

std::unique_ptr<ClipWriter> open_clip(const fs::path& path, const ClipOptions& wanted) {
  check_clip_name(path);
  ClipOptions options = wanted;
  options.growing = options.growing || detail::ClipSink::must_grow(path);
  const std::string ending = ending_of(path);
  if (!is_clip_file_name(path) || is_folder_name(path)) return detail::open_frame_folder(path, options);
  if (ending == ".gif") return detail::open_gif(path, options);
  if (ending == ".y4m") return detail::open_y4m_file(path, options);
  return detail::open_encoded(path, ending.substr(1), options);
}

std::unique_ptr<ClipWriter> open_clip_stream(const ClipOptions& wanted,
                                             std::function<void(ClipPiece&&)> take) {
  detail::check_encoder("clip write: a stream", "mp4");
  ClipOptions options = wanted;
  options.growing = true;
  return detail::open_fragments(options, std::move(take));
}

// The simplest fraction within a millionth, those of television first.
FrameRate frame_rate(double fps) {
  check(fps > 0 && fps <= 1000, "frame rate: expected above 0 and at most 1000, got ", fps);
  const auto near = [fps](double frames, double seconds) {
    return std::fabs(frames / seconds - fps) <= 1e-6 * fps;
  };
  for (std::int64_t seconds = 1; seconds <= 1001; seconds += 1000) {
    const auto frames = std::llround(fps * static_cast<double>(seconds));
    const bool fits = seconds == 1
                          ? near(static_cast<double>(frames), 1)
                          : frames % 1000 == 0 && frames > 0 &&
                                std::fabs(static_cast<double>(frames) / 1001 - fps) <= 5e-4 * fps / 30;
    if (fits && frames > 0) return {frames, seconds};
  }
  for (std::int64_t seconds = 2; seconds < 100000; ++seconds) {
    const auto frames = std::llround(fps * static_cast<double>(seconds));
    if (frames > 0 && near(static_cast<double>(frames), static_cast<double>(seconds)))
      return {frames, seconds};
  }
  return {std::max<std::int64_t>(1, std::llround(fps * 100000)), 100000};
}

}  // namespace pom::io
