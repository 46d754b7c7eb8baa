// Private to the room: text entries as one comment that people read, for files that have room for a comment
// and no more: "keyword: text" a line, and further lines of a text after a space, so that nothing in a text
// is taken for the next keyword.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pom/io/file_text.h"

namespace pom::io::detail {

// What as_comment makes of max_file_text bytes at most: of an entry of one byte four, of an end of line two.
inline constexpr std::size_t max_comment = 4 * max_file_text;

std::string as_comment(std::span<const TextEntry> text);

// What as_comment was given. A comment of another kind is one entry, "comment"; one that is not UTF-8 is
// none.
std::vector<TextEntry> from_comment(std::string_view comment);

// That every file can hold the text and give it back as it was: keywords of 1 to 79 bytes without colons and
// control characters, text of UTF-8 without zero bytes, max_file_text bytes in all.
void check_text(std::string_view operation, std::span<const TextEntry> text);

}  // namespace pom::io::detail
