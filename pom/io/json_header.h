// The JSON of a safetensors header: a strict cursor over the few shapes of value that occur in it, and how
// its strings are written. Nothing here recurses, so no header can nest deep enough to hurt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "pom/io/safetensors_error.h"

namespace pom::io::detail {

// The position of the first byte that is not well-formed UTF-8 (overlong forms, surrogates and values past
// U+10FFFF are not), or text.size().
std::size_t find_invalid_utf8(std::string_view text);

// Appends text in quotes, escaped byte for byte as the reference's serde_json does: only '"', '\' and control
// characters are, the latter in short form or as \u00xx in lower case.
void append_json_string(std::string& out, std::string_view text);

// Reads RFC 8259 JSON token by token. The text must be valid UTF-8 and, with the site, outlive the cursor.
//
// A value of another type is an error of the caller's kind; what is no JSON at all is JsonSyntax.
class JsonCursor {
 public:
  JsonCursor(std::string_view text, const Site& site) : text_(text), site_(site) {}

  using Kind = SafetensorsError::Kind;

  // Enters an object ('{') or array ('['). `expected` completes "expected ...".
  void open(char bracket, Kind otherwise, std::string_view expected);

  // Walks the members or elements of what was opened: `for (bool first = true; cursor.more(first, '}');)`.
  bool more(bool& first, char closing);

  // A member's name and the colon after it.
  std::string key();

  std::string string(Kind otherwise, std::string_view expected);

  // A number that is an integer in [0, 2^64).
  std::uint64_t integer(std::string_view expected);

  // Nothing but white space may remain.
  void finish();

 private:
  bool at_end() const { return position_ == text_.size(); }
  void skip_space();
  void expect(char token, std::string_view expected);
  [[noreturn]] void wrong_value(Kind otherwise, std::string_view expected) const;
  [[noreturn]] void wrong_token(std::string_view expected) const;
  std::string character_at(std::size_t index) const;
  std::string quoted_text();
  void escape(std::string& out);
  unsigned surrogate_pair(unsigned high);
  unsigned hex4();

  std::string_view text_;
  std::size_t position_ = 0;
  const Site& site_;
};

}  // namespace pom::io::detail
