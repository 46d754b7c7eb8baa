// Stands for the writers of clips, and for what reads the state of a stream into tensors, which no target has
// a use for.
#include "pom/base/error.h"
#include "pom/generate/live_clip.h"
#include "pom/io/clip.h"
#include "pom/io/clip_writers.h"
#include "pom/serve/clip_file.h"

namespace pom::io::detail {

std::string encoder_names() {
  return {};
}

}  // namespace pom::io::detail

namespace pom::io {

std::unique_ptr<ClipWriter> open_clip_stream(const ClipOptions&, std::function<void(ClipPiece&&)>) {
  fail("no clips here");
}
void ClipWriter::add(const Image&) {}
void ClipWriter::flush() {}

}  // namespace pom::io

namespace pom::generate {

BesideStream read_beside(const std::filesystem::path&) {
  fail("no streams here");
}

}  // namespace pom::generate

namespace pom::serve {

std::vector<io::Image> clip_frames(const ClipFile&, std::int64_t, std::int64_t,
                                   const std::function<bool()>&) {
  fail("no clips here");
}

ClipFile clip_file(std::span<const io::Image>, double, const std::vector<io::TextEntry>&) {
  return {"clip", "gif"};
}

}  // namespace pom::serve
