#include "pom/serve/batch_size.h"

#include <algorithm>
#include <charconv>

#include "pom/base/error.h"
#include "pom/base/shown.h"

namespace pom::serve {

std::vector<std::int64_t> batch_sizes(std::string_view device, std::string_view dtype) {
  if (!device.starts_with("cuda")) return {};
  if (dtype == "fp8") return {1};
  return {1, 4, 16, 64};
}

std::int64_t batch_size(std::int64_t waiting, std::int64_t most, std::span<const std::int64_t> sizes) {
  if (sizes.empty()) return std::min(waiting, most);
  std::int64_t chosen = sizes.front();
  for (const std::int64_t size : sizes)
    if (size <= most && 2 * waiting >= size && chosen < waiting) chosen = size;
  return chosen;
}

std::vector<std::int64_t> parse_batch_sizes(const std::string& text, std::string_view flag) {
  std::vector<std::int64_t> sizes;
  const char* at = text.data();
  const char* const end = at + text.size();
  bool right = !text.empty();
  while (right && at != end) {
    if (!sizes.empty() && *at++ != ',') {
      right = false;
      break;
    }
    std::int64_t size = 0;
    const auto [stop, error] = std::from_chars(at, end, size);
    constexpr std::int64_t most = 1024;
    right = error == std::errc() && size >= 1 && size <= most && (sizes.empty() || size > sizes.back());
    sizes.push_back(size), at = stop;
  }
  check(right && at == end, flag, ": expected sizes that rise, such as 1,4,16,64, got \"", shown(text), "\"");
  return sizes;
}

}  // namespace pom::serve
