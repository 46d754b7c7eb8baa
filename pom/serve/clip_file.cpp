#include "pom/serve/clip_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdlib.h>

#include "pom/base/error.h"
#include "pom/io/clip.h"

namespace pom::serve {
namespace {

namespace fs = std::filesystem;

// A folder for a moment.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "pom-serve-XXXXXX").string();
    check(::mkdtemp(name.data()) != nullptr, "serve: expected to make a folder in ",
          fs::temp_directory_path().string());
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

std::vector<io::Image> clip_frames(const ClipFile& file, std::int64_t every, std::int64_t most,
                                   const std::function<bool()>& stop) {
  const Scratch scratch;
  const fs::path path = scratch.path() / ("clip." + file.extension);
  std::ofstream(path, std::ios::binary) << file.bytes;
  io::ClipReader reader(path);
  std::vector<io::Image> frames;
  std::int64_t number = 0;
  for (io::Image frame; std::ssize(frames) < most && !stop() && reader.next(frame); ++number)
    if (number % every == 0) frames.push_back(frame);
  return frames;
}

ClipFile clip_file(std::span<const io::Image> frames, double fps, const std::vector<io::TextEntry>& text) {
  check(!frames.empty(), "serve: clip: expected frames, got none");
  const Scratch scratch;
  ClipFile file;
  file.extension = io::clip_libraries().empty() ? "gif" : "mp4";
  const fs::path path = scratch.path() / ("clip." + file.extension);
  io::ClipOptions options{
      .width = frames.front().width, .height = frames.front().height, .fps = fps, .text = text};
  const std::unique_ptr<io::ClipWriter> writer = io::open_clip(path, options);
  for (const io::Image& frame : frames) writer->add(frame);
  writer->finish();
  std::ifstream in(path, std::ios::binary);
  file.bytes.assign(std::istreambuf_iterator<char>(in), {});
  check(!file.bytes.empty(), "serve: clip: expected a file, got none");
  return file;
}

}  // namespace pom::serve
