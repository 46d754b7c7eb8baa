#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "cli/command.h"
#include "pom/base/shown.h"

namespace pom::cli {
namespace {

[[noreturn]] void refuse(const Field& field, std::string_view expected, const std::string& text) {
  const std::string range = range_text(field);
  throw UsageError(detail::concat(flag_name(field.name), ": expected ", expected, range.empty() ? "" : ", ",
                                  range, ", got \"", shown(text), "\""));
}

// Reads the whole of the text as a number, or refuses it.
template <class Number>
Number number(const Field& field, std::string_view expected, const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const char* begin = text.starts_with('+') && !text.starts_with("+-") ? text.data() + 1 : text.data();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || begin == end) refuse(field, expected, text);
  return value;
}

// check_value's message names the field; on the command line it is the flag that a person typed.
template <class Value>
void check_as_flag(const Field& field, const Value& value) {
  const std::string flag = flag_name(field.name);
  Field named = field;
  named.name = flag;
  as_usage([&] { check_value(named, value, ""); });
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// "steps of the sampler (1 to 10000; default 25)"
std::string description(const Field& field, const std::string& default_value) {
  std::vector<std::string> notes;
  std::string choices;
  for (const std::string& choice : field.choices) choices += (choices.empty() ? "" : ", ") + choice;
  if (!choices.empty()) notes.push_back(choices);
  if (const std::string range = range_text(field); !range.empty()) notes.push_back(range);
  if (!default_value.empty()) notes.push_back("default " + default_value);
  std::string text(field.help);
  for (std::size_t i = 0; i < notes.size(); ++i) text += (i == 0 ? " (" : "; ") + notes[i];
  return notes.empty() ? text : text + ")";
}

}  // namespace

std::string flag_name(std::string_view field) {
  std::string flag = "--" + std::string(field);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

void parse_value(const Field& field, const std::string& text, std::int64_t& value) {
  value = number<std::int64_t>(field, "a whole number", text);
  check_as_flag(field, static_cast<double>(value));
}

void parse_value(const Field& field, const std::string& text, double& value) {
  value = number<double>(field, "a number", text);
  if (!std::isfinite(value)) refuse(field, "a number", text);
  check_as_flag(field, value);
}

void parse_value(const Field& field, const std::string& text, std::string& value) {
  value = text;
  check_as_flag(field, std::string_view(value));
}

void parse_value(const Field& field, const std::string& text, std::vector<std::string>& value) {
  value = split(text);
  for (const std::string& part : value) check_as_flag(field, std::string_view(part));
}

// "1,5,9" and "0-9".
void parse_value(const Field& field, const std::string& text, std::vector<std::int64_t>& value) {
  constexpr std::int64_t most = 1'000'000;  // of a range
  value.clear();
  for (const std::string& part : split(text)) {
    const std::size_t dash = part.find('-', 1);
    if (dash == std::string::npos || part.starts_with('-')) {
      parse_value(field, part, value.emplace_back());
      continue;
    }
    std::int64_t first = 0, last = 0;
    parse_value(field, part.substr(0, dash), first);
    parse_value(field, part.substr(dash + 1), last);
    if (last < first || last - first >= most) refuse(field, "a range such as 0-9", part);
    for (std::int64_t i = first; i <= last; ++i) value.push_back(i);
  }
  if (value.empty()) refuse(field, "a whole number", text);
}

std::string default_text(const Field& field, std::int64_t value) {
  return default_text(field, static_cast<double>(value));
}

std::string default_text(const Field& field, double value) {
  return value < field.least || value > field.most ? std::string() : detail::concat(value);
}

std::string default_text(const Field&, const std::string& value) {
  return value;
}

void Flags::letter(std::string_view field, char letter) {
  letters_.emplace_back(field, letter);
}

void Flags::positional(std::string_view field) {
  positionals_.emplace_back(field);
}

void Flags::repeated(std::string_view field) {
  repeated_.emplace_back(field);
}

void Flags::once(std::string_view field, std::string_view instead) {
  once_.emplace_back(field, instead);
}

std::string Flags::names(const Field& field) const {
  if (std::ranges::find(positionals_, field.name) != positionals_.end()) return std::string(field.name);
  for (const auto& [name, letter] : letters_)
    if (name == field.name) return detail::concat("-", letter, ",", flag_name(field.name));
  return flag_name(field.name);
}

void Flags::add_field(const Field& field, bool& value) {
  app_.add_flag_callback(
          names(field), [&value] { value = true; }, std::string(field.help))
      ->group(std::string(field.group.empty() ? "Options" : field.group));
}

void Flags::add_field(const Field& field, std::vector<std::string>& value) {
  const auto read = [field, &value](const std::string& text) { parse_value(field, text, value); };
  if (std::ranges::find(repeated_, field.name) == repeated_.end())
    return add_option(field, default_text(field, value), type_letter(value), read);
  const auto parse = [&value](const CLI::results_t& results) {
    value.insert(value.end(), results.begin(), results.end());
    return true;
  };
  app_.add_option(names(field), parse, std::string(field.help))
      ->type_name(std::string(field.value))
      ->group(std::string(field.group.empty() ? "Options" : field.group))
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Flags::add_option(const Field& field, const std::string& default_value, std::string_view value_name,
                       std::function<void(const std::string&)> read) {
  const auto found = std::ranges::find(once_, field.name, &std::pair<std::string, std::string>::first);
  const bool once = found != once_.end();
  const auto parse = [name = flag_name(field.name), instead = once ? found->second : std::string(),
                      read = std::move(read)](const CLI::results_t& results) {
    if (results.size() > 1) throw UsageError(name + ": given twice; " + instead);
    const std::string& text = results.back();
    if (text.starts_with("--") && text.size() > 2)  // "--class --seed 3"
      throw UsageError(name + ": expected a value, got the flag " + text);
    read(text);
    return true;
  };
  app_.add_option(names(field), parse, description(field, default_value))
      ->type_name(std::string(field.value.empty() ? value_name : field.value))
      ->group(std::string(field.group.empty() ? "Options" : field.group))
      ->expected(1)
      ->multi_option_policy(once ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
  if (!field.formerly.empty()) refuse_former(field);
}

void Flags::refuse_former(const Field& field) {
  const std::string before = flag_name(field.formerly), now = flag_name(field.name);
  const auto refuse = [before, now](const CLI::results_t&) -> bool {
    throw UsageError(before + ": expected its new name, " + now);
  };
  app_.add_option(before, refuse, "")->group("");
}

}  // namespace pom::cli
