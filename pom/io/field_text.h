// Private to the room: what the readers and writers of declared fields (JSON, TOML) have in common.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace pom::io::detail {

// [a, b, c] in one line, or in lines of some 100 characters that start with `inner`, between brackets.
inline std::string list_text(std::span<const std::string> elements, const std::string& indent) {
  constexpr std::size_t width = 100;
  const std::string inner = indent + "  ";
  std::string text, row = inner;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::string element = elements[i] + (i + 1 < elements.size() ? "," : "");
    if (row.size() > inner.size() && row.size() + 1 + element.size() > width) {
      text += row + "\n";
      row = inner;
    }
    row += (row.size() > inner.size() ? " " : "") + element;
  }
  std::string list = "[";
  if (text.empty())
    list.append(row, inner.size());
  else
    list.append("\n").append(text).append(row).append("\n").append(indent);
  return list.append("]");
}

}  // namespace pom::io::detail
