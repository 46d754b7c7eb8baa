#include "pom/io/clip_tags.h"

#include <cstring>

#include "pom/base/error.h"
#include "pom/io/av_input.h"
#include "pom/io/clip_writers.h"
#include "pom/io/text_comment.h"

namespace pom::io::detail {
namespace {

// FFmpeg reads a tag of any length. The index of a clip of hours is not longer than this.
constexpr std::int64_t max_head = std::int64_t{1} << 26;

}  // namespace

std::string read_tags(const std::filesystem::path& path) {
  const AvInput input(path, "file text", max_head);
  for (const char* tag : {whole_tag, shown_tag})
    if (const AVDictionaryEntry* entry = av_dict_get(input.format()->metadata, tag, nullptr, 0)) {
      const std::size_t bytes = std::strlen(entry->value);
      check(bytes <= max_comment, "file text: ", path.string(), ": expected at most ", max_file_text,
            " bytes of text, got ", bytes);
      return {entry->value, bytes};
    }
  return {};
}

}  // namespace pom::io::detail
