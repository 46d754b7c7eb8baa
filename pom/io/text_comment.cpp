#include "pom/io/text_comment.h"

#include <algorithm>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/json_header.h"

namespace pom::io::detail {
namespace {

constexpr std::string_view after_keyword = ": ";

bool is_utf8(std::string_view text) {
  return find_invalid_utf8(text) == text.size();
}

bool is_keyword(std::string_view text) {
  const auto plain = [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != ':'; };
  return !text.empty() && text.size() <= 79 && std::ranges::all_of(text, plain) && text.front() != ' ' &&
         text.back() != ' ' && is_utf8(text);
}

std::string folded(std::string_view text) {
  std::string lines;
  for (const char c : text) {
    lines += c;
    if (c == '\n') lines += ' ';
  }
  return lines;
}

}  // namespace

std::string as_comment(std::span<const TextEntry> text) {
  std::string comment;
  for (const TextEntry& entry : text)
    comment.append(comment.empty() ? "" : "\n")
        .append(entry.keyword)
        .append(after_keyword)
        .append(folded(entry.text));
  return comment;
}

// A line without a space before it that begins with no keyword is another program's, and goes on with the
// text.
std::vector<TextEntry> from_comment(std::string_view comment) {
  std::vector<TextEntry> found;
  if (comment.empty() || !is_utf8(comment)) return found;
  for (bool more = true; more;) {
    const std::size_t end = comment.find('\n');
    more = end != comment.npos;
    const std::string_view line = comment.substr(0, end);
    comment.remove_prefix(more ? end + 1 : comment.size());
    const bool goes_on = line.starts_with(' ');
    const std::size_t colon = line.find(after_keyword);
    if (!goes_on && colon != line.npos && is_keyword(line.substr(0, colon)))
      found.push_back({std::string(line.substr(0, colon)), std::string(line.substr(colon + 2))});
    else if (found.empty())
      found.push_back({"comment", std::string(line)});
    else
      found.back().text.append("\n").append(line.substr(goes_on ? 1 : 0));
  }
  return found;
}

void check_text(std::string_view operation, std::span<const TextEntry> text) {
  std::size_t bytes = 0;
  for (const TextEntry& entry : text) {
    check(is_keyword(entry.keyword), operation,
          ": text: keyword: expected 1 to 79 bytes of UTF-8 without colons, control characters and spaces at "
          "its ends, got \"",
          shown(entry.keyword), "\"");
    const std::string site = ::pom::detail::concat(operation, ": text \"", entry.keyword, "\"");
    const std::size_t invalid = find_invalid_utf8(entry.text);
    check(invalid == entry.text.size(), site, ": expected UTF-8, got something else at byte ", invalid);
    check(entry.text.find('\0') == entry.text.npos, site,
          ": expected no zero byte, which ends text in files");
    bytes += entry.keyword.size() + entry.text.size();
  }
  check(bytes <= max_file_text, operation, ": text: expected at most ", max_file_text, " bytes, got ", bytes);
}

}  // namespace pom::io::detail
