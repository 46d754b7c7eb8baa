// Stands for clip_encode.cpp, clip_decode.cpp and clip_tags.cpp in a build without FFmpeg's libraries:
// whoever asks for what they do is told so.
#include "pom/base/error.h"
#include "pom/io/clip_source.h"
#include "pom/io/clip_tags.h"
#include "pom/io/clip_writers.h"

namespace pom::io {
namespace {

[[noreturn]] void refuse(std::string_view operation, std::string_view instead) {
  fail(operation,
       ": this libpom was built without FFmpeg: install libavformat-dev, libavcodec-dev, libswscale-dev and "
       "libavutil-dev and build it again",
       instead);
}

}  // namespace

void detail::check_encoder(const std::string& operation, const std::string&) {
  refuse(operation, ", or write .gif, .y4m or a folder of PNG");
}

std::unique_ptr<ClipWriter> detail::open_encoded(const std::filesystem::path& path,
                                                 const std::string& container, const ClipOptions&) {
  check_encoder("clip write: " + path.string(), container);
  return nullptr;
}

std::unique_ptr<ClipWriter> detail::open_fragments(const ClipOptions&, std::function<void(ClipPiece&&)>) {
  check_encoder("clip write: a stream", "mp4");
  return nullptr;
}

std::unique_ptr<detail::FrameSource> detail::open_decoded(const std::filesystem::path& path,
                                                          const ClipReading&) {
  refuse("clip read: " + path.string(), "");
}

std::string detail::read_tags(const std::filesystem::path& path) {
  refuse("file text: " + path.string(), "");
}

std::string clip_libraries() {
  return {};
}

}  // namespace pom::io
