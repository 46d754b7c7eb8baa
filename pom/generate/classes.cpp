#include "pom/generate/classes.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <optional>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"

namespace pom::generate {
namespace {

constexpr std::size_t max_classes = 1'000'000;  // that one text may stand for

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view spaces = " \t";
  const std::size_t first = text.find_first_not_of(spaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(spaces) - first + 1);
}

// The digits of a number that may be too large for any class.
std::optional<std::int64_t> number_of(std::string_view text) {
  if (text.empty() || !std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); })) return {};
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? value : std::numeric_limits<std::int64_t>::max();
}

class Parser {
 public:
  Parser(std::span<const std::string> names, std::int64_t count) : names_(names), count_(count) {}

  std::vector<std::int64_t> parse(std::string_view text) {
    if (!take_name(text)) take_list(text);
    return std::move(classes_);
  }

 private:
  // A class of exactly this name, which must be the only one.
  bool take_name(std::string_view text) {
    const std::string_view name = trimmed(text);
    const auto is_it = [&](const std::string& other) { return same_letters(other, name); };
    const auto found = std::ranges::find_if(names_, is_it);
    if (found == names_.end()) return false;
    const auto index = static_cast<std::int64_t>(found - names_.begin());
    const auto again = std::find_if(found + 1, names_.end(), is_it);
    check(again == names_.end(), "sample: class: \"", shown(name), "\" is the name of class ", index,
          " and of class ", again - names_.begin(), ": expected the number of one");
    add(index);
    return true;
  }

  // Pieces between commas, of which a name may take several: the longest that is one.
  void take_list(std::string_view text) {
    std::vector<std::size_t> ends;  // of the pieces
    for (std::size_t i = 0; i <= text.size(); ++i)
      if (i == text.size() || text[i] == ',') ends.push_back(i);
    const std::size_t widest = 1 + most_commas();
    std::size_t begin = 0;
    for (std::size_t piece = 0; piece < ends.size();) {
      std::size_t taken = std::min(widest, ends.size() - piece);
      const auto part = [&] { return text.substr(begin, ends[piece + taken - 1] - begin); };
      while (taken > 1 && !take_name(part())) --taken;
      if (taken == 1 && !take_name(part())) take_item(trimmed(part()), text);
      begin = ends[piece + taken - 1] + 1;
      piece += taken;
    }
  }

  std::size_t most_commas() const {
    std::size_t most = 0;
    for (const std::string& name : names_)
      most = std::max(most, static_cast<std::size_t>(std::ranges::count(name, ',')));
    return most;
  }

  void take_item(std::string_view item, std::string_view text) {
    check(!item.empty(), "sample: class: expected names or numbers between commas, got \"", shown(text),
          "\"");
    if (item == "all") return add_range(0, count_ - 1);
    if (item == "none") return add(count_);
    if (const std::optional<std::int64_t> number = number_of(item)) return add(checked(*number));
    if (const std::size_t dash = item.find('-'); dash != std::string_view::npos) {
      const std::optional<std::int64_t> first = number_of(item.substr(0, dash)),
                                        last = number_of(item.substr(dash + 1));
      if (first && last) {
        check(*first <= *last, "sample: class: expected a range from the smaller to the larger number, got ",
              shown(item));
        return add_range(checked(*first), checked(*last));
      }
    }
    const std::string hint =
        names_.empty() ? "; its classes have no names, only the numbers 0 to " + std::to_string(count_ - 1)
                       : suggestion(item, names_);
    fail("sample: class: the model has no class \"", shown(item), "\"", hint);
  }

  std::int64_t checked(std::int64_t number) const {
    check(number < count_, "sample: class: expected a number from 0 to ", count_ - 1, ", got ",
          number == std::numeric_limits<std::int64_t>::max() ? "more" : std::to_string(number));
    return number;
  }

  void add(std::int64_t index) {
    check(classes_.size() < max_classes, "sample: class: expected at most ", max_classes,
          " classes, got more");
    classes_.push_back(index);
  }
  void add_range(std::int64_t first, std::int64_t last) {
    for (std::int64_t index = first; index <= last; ++index) add(index);
  }

  std::span<const std::string> names_;
  std::int64_t count_;
  std::vector<std::int64_t> classes_;
};

}  // namespace

std::vector<std::int64_t> parse_classes(std::string_view text, std::span<const std::string> names,
                                        std::int64_t count) {
  return Parser(names, count).parse(text);
}

std::string class_text(std::int64_t index, std::span<const std::string> names, std::int64_t count) {
  if (index == count) return "none";
  if (names.empty()) return std::to_string(index);
  const std::string& name = names[static_cast<std::size_t>(index)];
  const auto same =
      std::ranges::count_if(names, [&](const std::string& other) { return same_letters(other, name); });
  return same == 1 ? name : std::to_string(index);
}

}  // namespace pom::generate
