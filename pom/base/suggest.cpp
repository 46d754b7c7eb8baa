#include "pom/base/suggest.h"

#include <algorithm>
#include <cctype>

#include "pom/base/shown.h"

namespace pom {
namespace {

constexpr std::size_t longest_name = 64;  // that is compared, and shown

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string joined(std::span<const std::string> names, std::string_view between, std::string_view quote) {
  std::string text;
  for (const std::string& name : names) {
    if (!text.empty()) text += between;
    text.append(quote).append(shown(name, longest_name)).append(quote);
  }
  return text;
}

}  // namespace

bool same_letters(std::string_view a, std::string_view b) {
  return lowered(a) == lowered(b);
}

std::size_t edit_distance(std::string_view left, std::string_view right) {
  const std::string a = lowered(left), b = lowered(right);
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> cost((a.size() + 1) * width);
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j < width; ++j) {
      std::size_t& here = cost[i * width + j];
      if (i == 0 || j == 0) {
        here = i + j;
        continue;
      }
      const std::size_t differs = a[i - 1] != b[j - 1];
      here = std::min({cost[(i - 1) * width + j] + 1, cost[i * width + j - 1] + 1,
                       cost[(i - 1) * width + j - 1] + differs});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        here = std::min(here, cost[(i - 2) * width + j - 2] + 1);
    }
  return cost.back();
}

std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> candidates,
                                       std::size_t most) {
  if (name.empty() || name.size() > longest_name) return {};  // a text: keeps the table small
  const std::string wanted = lowered(name);
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const std::string& candidate : candidates) {
    const std::string have = lowered(candidate);
    std::size_t distance = edit_distance(wanted, have.substr(0, longest_name));
    const bool part = wanted.size() >= 3 && have.find(wanted) != std::string::npos;
    if (part) distance = std::min<std::size_t>(distance, 1);
    if (distance <= std::max<std::size_t>(1, wanted.size() / 3)) ranked.emplace_back(distance, candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [distance, candidate] : ranked) {
    if (names.size() == most) break;
    names.push_back(candidate);
  }
  return names;
}

std::string suggestion(std::string_view name, std::span<const std::string> candidates) {
  const std::vector<std::string> near = nearest_names(name, candidates);
  if (!near.empty()) return "; did you mean " + joined(near, " or ", "\"") + "?";
  constexpr std::size_t few = 24;
  if (candidates.empty() || candidates.size() > few) return "";
  return "; there are " + joined(candidates, ", ", "");
}

}  // namespace pom
