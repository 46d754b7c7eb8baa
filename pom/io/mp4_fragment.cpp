#include "pom/io/mp4_fragment.h"

namespace pom::io {
namespace {

std::uint64_t big_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

// The inside of the first box of this kind; empty where there is none, or where sizes lie.
std::string_view inside(std::string_view boxes, std::string_view kind) {
  constexpr std::size_t head = 8;
  while (boxes.size() >= head) {
    const std::uint64_t size = big_endian(boxes.substr(0, 4));
    if (size < head || size > boxes.size()) return {};
    if (boxes.substr(4, 4) == kind) return boxes.substr(head, size - head);
    boxes.remove_prefix(size);
  }
  return {};
}

// The bytes of the time: 4, or 8 of version 1.
std::string_view time_bytes(std::string_view fragment) {
  const std::string_view box = inside(inside(inside(fragment, "moof"), "traf"), "tfdt");
  constexpr std::size_t flags = 4;  // with the version
  if (box.size() < flags) return {};
  const std::size_t size = box.front() == 1 ? 8 : 4;
  return box.size() >= flags + size ? box.substr(flags, size) : std::string_view();
}

}  // namespace

std::optional<std::uint64_t> fragment_time(std::string_view fragment) {
  const std::string_view bytes = time_bytes(fragment);
  if (bytes.empty()) return std::nullopt;
  return big_endian(bytes);
}

bool set_fragment_time(std::string& fragment, std::uint64_t time) {
  const std::string_view bytes = time_bytes(fragment);
  if (bytes.empty() || (bytes.size() == 4 && time >> 32 != 0)) return false;
  const auto first = static_cast<std::size_t>(bytes.data() - fragment.data());
  for (std::size_t i = bytes.size(), place = first; i-- > 0; ++place)
    fragment[place] = static_cast<char>(time >> (8 * i) & 0xff);
  return true;
}

}  // namespace pom::io
