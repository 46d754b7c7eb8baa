#include "pom/io/y4m_text.h"

#include <charconv>
#include <cstdio>

#include "pom/base/error.h"
#include "pom/io/text_comment.h"

namespace pom::io::detail {
namespace {

// In a clip of a few pixels the text would be a whole frame more. There its line does not begin as a frame
// does, and some readers complain after the last one.
constexpr std::string_view as_frame = "FRAME XPOM-TEXT\n", as_other = "XPOM-TEXT\n", mark = "\nXPOM-TEXT=";
constexpr std::size_t digits = 8, last_line = mark.size() + digits + 1;
constexpr std::size_t most = max_comment + as_frame.size() + last_line;

std::string last_line_of(std::size_t bytes) {
  char number[24];
  std::snprintf(number, sizeof number, "%08zu\n", bytes);
  return std::string(mark) + number;
}

}  // namespace

std::string y4m_ending(std::span<const TextEntry> text, std::size_t frame_bytes) {
  if (text.empty()) return {};
  const std::string comment = as_comment(text);
  const std::string_view head = comment.size() + last_line < frame_bytes ? as_frame : as_other;
  return std::string(head) + comment + last_line_of(head.size() + comment.size() + last_line);
}

std::optional<Y4mText> find_y4m_text(const FileParts& file) {
  if (file.size() < last_line) return {};
  const std::string last = file.at(file.size() - last_line, last_line);
  std::size_t bytes = 0;
  const char* number = last.data() + mark.size();
  const auto [end, error] = std::from_chars(number, number + digits, bytes);
  if (!last.starts_with(mark) || error != std::errc() || end != number + digits || last.back() != '\n')
    return {};
  check(bytes <= most, file.site(), ": expected at most ", max_file_text, " bytes of text, got more");
  if (bytes > file.size()) return {};
  const std::uint64_t begin = file.size() - bytes;
  const std::string ending = file.at(begin, bytes);
  for (const std::string_view head : {as_frame, as_other})
    if (ending.starts_with(head) && bytes >= head.size() + last_line)
      return Y4mText{begin, ending.substr(head.size(), bytes - head.size() - last_line)};
  return {};
}

}  // namespace pom::io::detail
