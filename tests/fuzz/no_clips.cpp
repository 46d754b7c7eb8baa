// Stands for the writers of clips, which no target has a use for.
#include "pom/io/clip_writers.h"
#include "pom/serve/clip_file.h"

namespace pom::io::detail {

std::string encoder_names() {
  return {};
}

}  // namespace pom::io::detail

namespace pom::serve {

ClipFile clip_file(std::span<const io::Image>, double, const std::vector<io::TextEntry>&) {
  return {"clip", "gif"};
}

}  // namespace pom::serve
