#include "pom/base/shown.h"

#include <cstdint>
#include <cstdio>

namespace pom {
namespace {

struct Character {
  std::size_t bytes = 0;  // 0: not UTF-8
  std::uint32_t code = 0;
};

// Well-formed sequences only: none that is longer than it need be, no surrogates, nothing beyond U+10FFFF.
Character decoded(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {1, lead};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = code < (bytes == 4 ? 0x10000U : bytes == 3 ? 0x800U : 0x80U);
  if (overlong || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {bytes, code};
}

// Of Unicode's categories: controls, separators of lines and paragraphs, and what sets the direction.
bool harmful(std::uint32_t code) {
  const auto among = [&](std::uint32_t first, std::uint32_t last) { return code >= first && code <= last; };
  return code < 0x20 || among(0x7f, 0x9f) || code == 0x61c || among(0x200e, 0x200f) ||
         among(0x2028, 0x202e) || among(0x2066, 0x2069);
}

std::string escaped(std::uint32_t code, const char* format) {
  char text[16];
  std::snprintf(text, sizeof text, format, static_cast<unsigned>(code));
  return text;
}

}  // namespace

ShownCharacter first_shown(std::string_view text) {
  if (text.empty()) return {0, true, {}};
  const auto [bytes, code] = decoded(text);
  if (bytes == 0) return {1, false, escaped(static_cast<unsigned char>(text[0]), "\\x%02x")};
  if (!harmful(code)) return {bytes, true, std::string(text.substr(0, bytes))};
  if (code == '\n') return {bytes, false, "\\n"};
  return {bytes, false, escaped(code, code < 0x80 ? "\\x%02x" : "\\u%04x")};
}

std::string shown(std::string_view text, std::size_t most) {
  std::string line;
  for (std::size_t count = 0; !text.empty(); ++count) {
    if (count == most) return line + "…";
    const ShownCharacter first = first_shown(text);
    line += first.text;
    text.remove_prefix(first.bytes);
  }
  return line;
}

}  // namespace pom
