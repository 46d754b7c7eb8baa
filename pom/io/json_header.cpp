// Strict JSON, as much of it as a safetensors header may contain. Accepts no more than serde_json does.
#include "pom/io/json_header.h"

#include <array>
#include <cstdio>

namespace pom::io::detail {
namespace {

unsigned byte_at(std::string_view text, std::size_t index) {
  return static_cast<unsigned char>(text[index]);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// The length of the well-formed sequence at index, or 0. Table 3-7 of the Unicode standard.
std::size_t utf8_sequence(std::string_view text, std::size_t index) {
  const unsigned lead = byte_at(text, index);
  if (lead < 0x80) return 1;
  const std::size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() - index < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte_at(text, index + i) & 0xC0) != 0x80) return 0;
  const unsigned second = byte_at(text, index + 1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0;
  const bool too_large = lead == 0xF4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

void append_utf8(std::string& out, unsigned code) {
  const auto tail = [&](unsigned shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(12), tail(6), tail(0);
  }
}

// The letter after the backslash that stands for a control character, or 0.
char short_escape(char c) {
  switch (c) {
    case '\b':
      return 'b';
    case '\t':
      return 't';
    case '\n':
      return 'n';
    case '\f':
      return 'f';
    case '\r':
      return 'r';
    default:
      return 0;
  }
}

// What the value that starts with this character is, or nothing where none does.
std::string_view value_type(char c) {
  if (is_digit(c) || c == '-') return "a number";
  switch (c) {
    case '{':
      return "an object";
    case '[':
      return "an array";
    case '"':
      return "a string";
    case 't':
      return "true";
    case 'f':
      return "false";
    case 'n':
      return "null";
    default:
      return {};
  }
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t index = 0;
  while (index < text.size()) {
    const std::size_t length = utf8_sequence(text, index);
    if (length == 0) return index;
    index += length;
  }
  return index;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    } else if (const char letter = short_escape(c)) {
      out += '\\';
      out += letter;
    } else {
      std::array<char, 7> code;
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      out += code.data();
    }
  }
  out += '"';
}

void JsonCursor::open(char bracket, Kind otherwise, std::string_view expected) {
  skip_space();
  if (at_end() || text_[position_] != bracket) wrong_value(otherwise, expected);
  ++position_;
}

bool JsonCursor::more(bool& first, char closing) {
  skip_space();
  if (!at_end() && text_[position_] == closing) {
    ++position_;
    return false;
  }
  if (!first) expect(',', closing == '}' ? "',' or '}'" : "',' or ']'");
  first = false;
  return true;
}

std::string JsonCursor::key() {
  skip_space();
  if (at_end() || text_[position_] != '"') wrong_token("a quoted name");
  std::string name = quoted_text();
  expect(':', "':'");
  return name;
}

std::string JsonCursor::string(Kind otherwise, std::string_view expected) {
  skip_space();
  if (at_end() || text_[position_] != '"') wrong_value(otherwise, expected);
  return quoted_text();
}

std::uint64_t JsonCursor::integer(std::string_view expected) {
  skip_space();
  const std::size_t start = position_;
  if (!at_end() && text_[start] == '-')
    site_.fail(Kind::NumberNegative, "expected ", expected, " at byte ", start,
               " of the header, got a negative number");
  if (at_end() || !is_digit(text_[start])) wrong_value(Kind::NotAnInteger, expected);
  std::uint64_t value = 0;
  bool overflow = false;
  for (; !at_end() && is_digit(text_[position_]); ++position_) {
    const auto digit = static_cast<std::uint64_t>(text_[position_] - '0');
    overflow |= __builtin_mul_overflow(value, std::uint64_t{10}, &value);
    overflow |= __builtin_add_overflow(value, digit, &value);
  }
  if (!at_end() && (text_[position_] == '.' || text_[position_] == 'e' || text_[position_] == 'E'))
    site_.fail(Kind::NumberFractional, "expected ", expected, " at byte ", start,
               " of the header, got a number with a fraction or an exponent");
  const std::string_view digits = text_.substr(start, position_ - start);
  if (digits.size() > 1 && digits.front() == '0')
    site_.fail(Kind::NumberLeadingZero, "expected ", expected, " at byte ", start,
               " of the header, got a number with a leading zero");
  if (overflow)
    site_.fail(Kind::NumberOverflow, "expected ", expected, " below 2^64 at byte ", start,
               " of the header, got ", digits.substr(0, 40));
  return value;
}

void JsonCursor::finish() {
  skip_space();
  if (!at_end())
    site_.fail(Kind::JsonTrailing,
               "expected nothing but white space after the '}' that ends the header, got byte ",
               byte_at(text_, position_), " at ", position_);
}

void JsonCursor::skip_space() {
  while (!at_end() && is_space(text_[position_])) ++position_;
}

void JsonCursor::expect(char token, std::string_view expected) {
  skip_space();
  if (at_end() || text_[position_] != token) wrong_token(expected);
  ++position_;
}

void JsonCursor::wrong_value(Kind otherwise, std::string_view expected) const {
  const std::string_view type = at_end() ? std::string_view{} : value_type(text_[position_]);
  if (type.empty()) wrong_token(expected);
  site_.fail(otherwise, "expected ", expected, " at byte ", position_, " of the header, got ", type);
}

void JsonCursor::wrong_token(std::string_view expected) const {
  if (at_end()) site_.fail(Kind::JsonTruncated, "expected ", expected, ", got the end of the header");
  site_.fail(Kind::JsonSyntax, "expected ", expected, " at byte ", position_, " of the header, got ",
             character_at(position_));
}

std::string JsonCursor::character_at(std::size_t index) const {
  return quote(text_.substr(index, utf8_sequence(text_, index)));
}

// From the opening quote to past the closing one.
std::string JsonCursor::quoted_text() {
  std::string out;
  ++position_;
  for (;;) {
    const std::size_t start = position_;
    while (!at_end() && text_[position_] != '"' && text_[position_] != '\\' &&
           byte_at(text_, position_) >= 0x20)
      ++position_;
    out.append(text_, start, position_ - start);
    if (at_end()) site_.fail(Kind::JsonTruncated, "expected the end of a string, got the end of the header");
    const char c = text_[position_++];
    if (c == '"') return out;
    if (c != '\\')
      site_.fail(Kind::ControlCharacter, "expected control characters escaped, got byte ",
                 static_cast<unsigned>(c), " in the string at byte ", position_ - 1, " of the header");
    escape(out);
  }
}

// From past the backslash.
void JsonCursor::escape(std::string& out) {
  if (at_end()) site_.fail(Kind::JsonTruncated, "expected the rest of an escape, got the end of the header");
  const char c = text_[position_++];
  switch (c) {
    case '"':
    case '\\':
    case '/':
      out += c;
      return;
    case 'b':
      out += '\b';
      return;
    case 'f':
      out += '\f';
      return;
    case 'n':
      out += '\n';
      return;
    case 'r':
      out += '\r';
      return;
    case 't':
      out += '\t';
      return;
    case 'u':
      break;
    default:
      site_.fail(Kind::BadEscape, "expected one of \"\\/bfnrtu after the backslash at byte ", position_ - 2,
                 " of the header, got ", character_at(position_ - 1));
  }
  const unsigned unit = hex4();
  append_utf8(out, unit >= 0xD800 && unit < 0xE000 ? surrogate_pair(unit) : unit);
}

// The code point of two escapes, the first of which has been read.
unsigned JsonCursor::surrogate_pair(unsigned high) {
  const std::size_t start = position_ - 6;
  if (high < 0xDC00 && text_.substr(position_, 2) == "\\u") {
    position_ += 2;
    const unsigned low = hex4();
    if (low >= 0xDC00 && low < 0xE000) return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }
  site_.fail(Kind::LoneSurrogate, "expected surrogates in pairs, got half a pair at byte ", start,
             " of the header");
}

unsigned JsonCursor::hex4() {
  unsigned value = 0;
  for (int i = 0; i < 4; ++i, ++position_) {
    if (at_end())
      site_.fail(Kind::JsonTruncated, "expected four hexadecimal digits, got the end of the header");
    const char c = text_[position_];
    const char lower = static_cast<char>(c | 0x20);
    if (!is_digit(c) && !(lower >= 'a' && lower <= 'f'))
      site_.fail(Kind::BadEscape, "expected four hexadecimal digits after \\u, got ", character_at(position_),
                 " at byte ", position_, " of the header");
    value = value << 4 | static_cast<unsigned>(is_digit(c) ? c - '0' : lower - 'a' + 10);
  }
  return value;
}

}  // namespace pom::io::detail
