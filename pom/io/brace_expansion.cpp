// "data-{000000..000123}.tar": names of shards, in the order of the package braceexpand.
#include <algorithm>
#include <charconv>
#include <optional>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/webdataset.h"

namespace pom::io {
namespace {

constexpr std::size_t most_names = 1'000'000;
constexpr int deepest_braces = 32;

using Names = std::vector<std::string>;

class BraceExpansion {
 public:
  explicit BraceExpansion(std::string_view whole) : whole_(whole) {}

  // All of them still with their backslashes.
  Names pattern(std::string_view text, int depth) const {
    check(depth < deepest_braces, site(), "expected at most ", deepest_braces, " levels of braces, got more");
    Names names = {""};
    std::size_t start = 0, open = 0;
    int level = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\\') {
        ++i;
      } else if (text[i] == '{') {
        if (level++ == 0) {
          times(names, {std::string(text.substr(start, i - start))});
          open = i;
        }
      } else if (text[i] == '}') {
        check(--level >= 0, site(), "expected an opening brace for each closing one, got none");
        if (level == 0) {
          times(names, expression(text.substr(open + 1, i - open - 1), depth));
          start = i + 1;
        }
      }
    }
    check(level == 0, site(), "expected a closing brace for each opening one, got none");
    times(names, {std::string(text.substr(start))});
    return names;
  }

 private:
  std::string site() const { return pom::detail::concat("shards: \"", shown(whole_), "\": "); }

  void check_count(std::uint64_t count) const {
    check(count <= most_names, site(), "expected at most ", most_names, " names, got more");
  }

  void times(Names& names, const Names& endings) const {
    if (endings.size() == 1) {
      for (std::string& name : names) name += endings.front();
      return;
    }
    check_count(std::uint64_t{names.size()} * endings.size());
    Names all;
    all.reserve(names.size() * endings.size());
    for (const std::string& name : names)
      for (const std::string& ending : endings) all.push_back(name + ending);
    names = std::move(all);
  }

  Names expression(std::string_view text, int depth) const {
    if (auto names = range(text)) return *std::move(names);
    Names names;
    bool list = false;
    std::size_t start = 0;
    int level = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '{')
        ++level;
      else if (text[i] == '}')
        --level;
      else if (text[i] == ',' && level == 0) {
        join(names, pattern(text.substr(start, i - start), depth + 1));
        start = i + 1;
        list = true;
      }
    }
    join(names, pattern(text.substr(start), depth + 1));
    if (!list)  // neither a range nor a list: the braces are meant as they stand
      for (std::string& name : names) name = "{" + name + "}";
    return names;
  }

  void join(Names& names, Names more) const {
    check_count(names.size() + more.size());
    std::ranges::move(more, std::back_inserter(names));
  }

  static std::optional<std::int64_t> integer(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    constexpr std::int64_t far = std::int64_t{1} << 40;
    if (error != std::errc() || end != text.data() + text.size() || value > far || value < -far)
      return std::nullopt;
    return value;
  }

  static bool padded(std::string_view text) {
    if (text.starts_with('-')) text.remove_prefix(1);
    return text.size() > 1 && text.front() == '0';
  }

  // "1..9", "000..123", "0..10..2", "a..e".
  std::optional<Names> range(std::string_view text) const {
    const std::size_t dots = text.find("..");
    if (dots == std::string_view::npos) return std::nullopt;
    const std::string_view first = text.substr(0, dots);
    std::string_view last = text.substr(dots + 2);
    std::int64_t step = 1;
    if (const std::size_t more = last.find(".."); more != std::string_view::npos) {
      const auto told = integer(last.substr(more + 2));
      if (!told) return std::nullopt;
      step = std::max<std::int64_t>(1, std::abs(*told));
      last = last.substr(0, more);
    }
    if (const auto from = integer(first), to = integer(last); from && to)
      return integers(*from, *to, step,
                      padded(first) || padded(last) ? std::max(first.size(), last.size()) : 0);
    return letters(first, last, step);
  }

  Names integers(std::int64_t from, std::int64_t to, std::int64_t step, std::size_t width) const {
    check_count(static_cast<std::uint64_t>(std::abs(to - from) / step + 1));
    Names names;
    for (std::int64_t i = from; from <= to ? i <= to : i >= to; i += from <= to ? step : -step) {
      std::string digits = std::to_string(std::abs(i));
      const std::size_t sign = i < 0 ? 1 : 0;
      if (digits.size() + sign < width) digits.insert(0, width - digits.size() - sign, '0');
      names.push_back((i < 0 ? "-" : "") + digits);
    }
    return names;
  }

  // Capitals come before the others, and nothing between.
  static std::optional<Names> letters(std::string_view first, std::string_view last, std::int64_t step) {
    constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if (first.size() != 1 || last.size() != 1) return std::nullopt;
    const auto from = alphabet.find(first[0]), to = alphabet.find(last[0]);
    if (from == alphabet.npos || to == alphabet.npos) return std::nullopt;
    Names names;
    const auto end = static_cast<std::int64_t>(to);
    for (auto i = static_cast<std::int64_t>(from); from <= to ? i <= end : i >= end;
         i += from <= to ? step : -step)
      names.emplace_back(1, alphabet[static_cast<std::size_t>(i)]);
    return names;
  }

  std::string_view whole_;
};

std::string without_backslashes(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) ++i;
    plain += text[i];
  }
  return plain;
}

}  // namespace

std::vector<std::string> expand_webdataset(std::string_view pattern) {
  Names all;
  for (std::size_t start = 0; start <= pattern.size();) {
    const std::size_t end = std::min(pattern.find("::", start), pattern.size());
    for (const std::string& name : BraceExpansion(pattern).pattern(pattern.substr(start, end - start), 0))
      all.push_back(without_backslashes(name));
    check(all.size() <= most_names, "shards: \"", shown(pattern), "\": expected at most ", most_names,
          " names, got more");
    start = end + 2;
  }
  return all;
}

}  // namespace pom::io
