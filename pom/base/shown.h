// Text of others, from files and command lines, as a message or a screen may show it: no more of it than a
// person reads, and nothing in it that works a terminal, breaks the line or turns the direction of writing.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pom {

// Within one line: control characters, ends of lines and marks of direction become "\n", "\x1b", "\u202e",
// bytes that are not UTF-8 "\xff". What comes after `most` characters is cut, and "…" stands for it.
std::string shown(std::string_view text, std::size_t most = 120);

// Of a text's first character: its bytes, and how it may be shown, which is itself where it does no harm.
struct ShownCharacter {
  std::size_t bytes;
  bool harmless;
  std::string text;
};
ShownCharacter first_shown(std::string_view text);

}  // namespace pom
