// The flags of a subcommand, made from declared fields (pom/base/fields.h): field `cfg_scale` is the flag
// --cfg-scale, with the field's help, value name, range, choices and group. CLI11 splits the command line;
// the values are read here, so that a mistake is told in the same words as in JSON or Python.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/fields.h"

namespace CLI {
class App;
}

namespace pom::cli {

std::string flag_name(std::string_view field);  // "cfg_scale" -> "--cfg-scale"

// Text to value, with the field's range and choices; throws UsageError that begins with the flag.
void parse_value(const Field& field, const std::string& text, std::int64_t& value);
void parse_value(const Field& field, const std::string& text, double& value);
void parse_value(const Field& field, const std::string& text, std::string& value);
void parse_value(const Field& field, const std::string& text, std::vector<std::string>& value);
void parse_value(const Field& field, const std::string& text, std::vector<std::int64_t>& value);
template <class Value>
void parse_value(const Field& field, const std::string& text, std::optional<Value>& value) {
  parse_value(field, text, value.emplace());
}

// What stands in help as the default; empty where there is nothing to say. A number outside its field's range
// stands for "not given".
std::string default_text(const Field& field, std::int64_t value);
std::string default_text(const Field& field, double value);
std::string default_text(const Field& field, const std::string& value);
template <class Value>
std::string default_text(const Field&, const std::vector<Value>&) {
  return {};
}
template <class Value>
std::string default_text(const Field& field, const std::optional<Value>& value) {
  return value ? default_text(field, *value) : std::string();
}

class Flags {
 public:
  explicit Flags(CLI::App& app) : app_(app) {}

  // Every field of a struct of options, which must live until the command line is parsed.
  template <class Options>
  void add(Options& options) {
    options.fields([this](const Field& field, auto& value) { add_field(field, value); });
  }

  // Called before add(): a letter that stands for a field, or an argument without a flag.
  void letter(std::string_view field, char letter);
  void positional(std::string_view field);
  // A list of texts of which each use of the flag adds one, commas and all.
  void repeated(std::string_view field);
  // A field that a person may think is repeated: a second one is refused, and `instead` says what to write.
  // (Of the others the last one counts, so that a script's own settings can be changed behind them.)
  void once(std::string_view field, std::string_view instead);

 private:
  void add_field(const Field& field, bool& value);
  void add_field(const Field& field, std::vector<std::string>& value);
  template <class Value>
  void add_field(const Field& field, Value& value) {
    add_option(field, default_text(field, value), type_letter(value),
               [field, &value](const std::string& text) { parse_value(field, text, value); });
  }
  void add_option(const Field& field, const std::string& default_value, std::string_view value_name,
                  std::function<void(const std::string&)> read);
  void refuse_former(const Field& field);  // what answers to a name that a flag had
  std::string names(const Field& field) const;

  static std::string_view type_letter(const std::int64_t&) { return "N"; }
  static std::string_view type_letter(const double&) { return "X"; }
  static std::string_view type_letter(const std::string&) { return "TEXT"; }
  static std::string_view type_letter(const std::vector<std::string>&) { return "A,B"; }
  static std::string_view type_letter(const std::vector<std::int64_t>&) { return "N,N"; }
  template <class Value>
  static std::string_view type_letter(const std::optional<Value>&) {
    return type_letter(Value{});
  }

  CLI::App& app_;
  std::vector<std::pair<std::string, char>> letters_;
  std::vector<std::string> positionals_, repeated_;
  std::vector<std::pair<std::string, std::string>> once_;  // field, and what to write instead
};

}  // namespace pom::cli
