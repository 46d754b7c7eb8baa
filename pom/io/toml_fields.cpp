#include "pom/io/toml_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

// Numbers are read without the program's locale; what we do not use is not compiled.
#define TOML_FLOAT_CHARCONV 1
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 32
#include <toml++/toml.h>

#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/io/field_text.h"
#include "pom/io/json_header.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

// ---- text to a tree ----

// The position behind a string that begins at `i`, be it in one line ("a", 'a') or in several ("""a""").
std::size_t skip_string(std::string_view text, std::size_t i) {
  const char quote = text[i];
  const bool lines = text.substr(i, 3) == std::string(3, quote);
  const std::string_view end = lines ? text.substr(i, 3) : text.substr(i, 1);
  for (i += end.size(); i < text.size(); ++i) {
    if (text.substr(i, end.size()) == end) return i + end.size();
    if (text[i] == '\n' && !lines) return i;
    if (text[i] == '\\' && quote == '"') ++i;
  }
  return text.size();
}

// The parser bounds how deep values nest, but not keys: a.a.a.… makes a tree that cannot even be destroyed.
void check_key_depth(std::string_view text, std::string_view source) {
  int dots = 0;
  std::size_t line = 1;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      const std::size_t end = skip_string(text, i);
      line += static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(i),
                                                  text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      i = end;
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '\n') ++line;
    if (c == '.')
      check(++dots < max_toml_depth, source, ": line ", line, ": expected at most ", max_toml_depth,
            " levels, got more");
    else if (std::string_view("\n=,[{").find(c) != std::string_view::npos)
      dots = 0;
    ++i;
  }
}

toml::table parse(std::string_view text, std::string_view source) {
  check(text.size() <= max_toml_bytes, source, ": expected at most ", max_toml_bytes, " bytes of TOML, got ",
        text.size());
  check_key_depth(text, source);
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    fail(source, ": line ", at.line, ", column ", at.column, ": ", error.description());
  }
}

// ---- values as text ----

// The shortest digits that read back to the same number, with a sign of being no integer.
std::string number_text(double value) {
  if (std::isnan(value)) return std::signbit(value) ? "-nan" : "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[32];
  const std::string text(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text.find('.') == std::string::npos ? text + ".0" : text;
  std::size_t start = e + 1;  // of "e-04", which people write e-4
  const bool negative = text[start] == '-';
  start = text.find_first_not_of("+-0", start);
  return text.substr(0, e) + (negative ? "e-" : "e") + text.substr(start);
}

std::string toml_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    constexpr std::string_view special = "\"\\\b\t\n\f\r", letters = "\"\\btnfr";
    if (const std::size_t i = special.find(c); i != std::string_view::npos) {
      out += '\\';
      out += letters[i];
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// A value as a message shows it.
std::string shown(const toml::node& value) {
  if (value.is_table()) return "a table";
  if (const toml::array* list = value.as_array()) return list->empty() ? "an empty list" : "a list";
  if (const auto text = value.value_exact<std::string>()) return detail::beginning(toml_quoted(*text), "…");
  if (const auto integer = value.value_exact<std::int64_t>()) return std::to_string(*integer);
  if (const auto number = value.value_exact<double>()) return number_text(*number);
  if (const auto truth = value.value_exact<bool>()) return *truth ? "true" : "false";
  return "a date or time";
}

// ---- a tree to fields ----

// Where a value is: what messages begin with, and its field.
struct Site {
  std::string where;  // "shapes.toml: line 12: optimizer."
  const Field& field;

  [[noreturn]] void refuse(std::string_view expected, const toml::node& value) const {
    fail(where, field.name, ": expected ", expected, ", got ", shown(value));
  }
};

// What a message says was expected.
constexpr std::string_view kind(const bool*) {
  return "true or false";
}
constexpr std::string_view kind(const std::int64_t*) {
  return "an integer";
}
constexpr std::string_view kind(const double*) {
  return "a number";
}
constexpr std::string_view kind(const std::string*) {
  return "a text";
}
constexpr std::string_view kind(const std::vector<std::string>*) {
  return "a list of texts";
}
constexpr std::string_view kind(const std::vector<std::int64_t>*) {
  return "a list of integers";
}
template <class Value>
constexpr std::string_view kind(const std::optional<Value>*) {
  return kind(static_cast<const Value*>(nullptr));
}
constexpr std::string_view kind(std::monostate) {
  return "a table";
}

template <class Value>
void take(const toml::node& value, Value& into, const Site& site) {
  std::optional<Value> found = value.value_exact<Value>();
  if constexpr (std::is_same_v<Value, double>)
    if (const auto integer = value.value_exact<std::int64_t>()) found = static_cast<double>(*integer);
  if (!found) site.refuse(kind(&into), value);
  if constexpr (std::is_same_v<Value, std::string>)
    check_value(site.field, std::string_view(*found), site.where);
  else if constexpr (!std::is_same_v<Value, bool>)
    check_value(site.field, static_cast<double>(*found), site.where);
  into = std::move(*found);
}

template <class Element>
void take(const toml::node& value, std::vector<Element>& into, const Site& site) {
  const toml::array* list = value.as_array();
  if (list == nullptr) site.refuse(kind(&into), value);
  std::vector<Element> elements(list->size());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::string name = pom::detail::concat(site.field.name, "[", i, "]");
    Field element = site.field;
    element.name = name;
    take(*list->get(i), elements[i], Site{site.where, element});
  }
  into = std::move(elements);
}

template <class Value>
void take(const toml::node& value, std::optional<Value>& into, const Site& site) {
  Value taken{};
  take(value, taken, site);
  into = std::move(taken);
}

// "optimizer.lr" of all fields, tables and what is in them.
void collect_paths(std::span<const BoundField> fields, const std::string& prefix,
                   std::vector<std::string>& paths) {
  for (const BoundField& bound : fields) {
    paths.push_back(prefix + std::string(bound.field.name));
    collect_paths(bound.inner, paths.back() + ".", paths);
  }
}

// The end of a message about a name that does not exist: those near to it in its own table, and the same name
// in another; failing these, whatever is near in others, or what there is.
std::string advice(std::string_view name, std::span<const BoundField> own, std::span<const BoundField> all,
                   const std::string& prefix) {
  std::vector<std::string> names, paths, same, near;
  for (const BoundField& b : own) names.emplace_back(b.field.name);
  collect_paths(all, "", paths);
  for (const std::string& path : paths) {
    if (path.rfind('.') == std::string::npos ? prefix.empty() : path.substr(0, path.rfind('.') + 1) == prefix)
      continue;
    const std::string last = path.substr(path.rfind('.') + 1);
    if (same_letters(last, name)) same.push_back(path);
    if (!nearest_names(name, std::span(&last, 1)).empty()) near.push_back(path);
  }
  std::vector<std::string> best = same;
  for (const std::string& local : nearest_names(name, names)) best.push_back(local);
  if (best.empty()) best = near;
  if (best.empty()) return suggestion(name, names);
  if (best.size() > 3) best.resize(3);
  std::string text;
  for (const std::string& path : best) text += (text.empty() ? "; did you mean \"" : "\" or \"") + path;
  return text + "\"?";
}

// Reads one file or one --set: what is given so far, and how messages begin.
class Taker {
 public:
  Taker(std::span<const BoundField> all, std::string_view source, bool lines)
      : all_(all), source_(source), lines_(lines) {}

  void take_table(const toml::table& table, std::span<const BoundField> fields, const std::string& prefix) {
    // The tree is sorted by name; what is told first shall be what comes first.
    std::vector<std::pair<const toml::key*, const toml::node*>> entries;
    for (const auto& [key, value] : table) entries.emplace_back(&key, &value);
    std::ranges::stable_sort(entries, [](const auto& a, const auto& b) {
      const toml::source_position x = a.first->source().begin, y = b.first->source().begin;
      return std::pair(x.line, x.column) < std::pair(y.line, y.column);
    });
    for (const auto& [key, value] : entries) {
      const std::size_t line = key->source().begin.line;
      take_field(*value, at(key->str(), fields, prefix, line), prefix, line);
    }
  }

  void take_field(const toml::node& value, const BoundField& bound, const std::string& prefix,
                  std::size_t line) {
    const std::string path = prefix + std::string(bound.field.name);
    check(given_.insert(path).second, where(line), path, ": expected once, got it as ", bound.field.formerly,
          " as well");
    const Site site{where(line) + prefix, bound.field};
    std::visit(
        [&]<class Pointer>(Pointer pointer) {
          if constexpr (!std::is_same_v<Pointer, std::monostate>)
            take(value, *pointer, site);
          else if (const toml::table* table = value.as_table())
            take_table(*table, bound.inner, path + ".");
          else
            site.refuse(kind(pointer), value);
        },
        bound.value);
  }

  // The field of that name, or an error that suggests the nearest.
  const BoundField& at(std::string_view name, std::span<const BoundField> fields, const std::string& prefix,
                       std::size_t line) const {
    const BoundField* bound = find_field(fields, name);
    if (bound == nullptr)
      fail(where(line), prefix, detail::beginning(std::string(name), "…"), ": unknown field",
           advice(name, fields, all_, prefix));
    return *bound;
  }

  std::string where(std::size_t line) const {
    return lines_ ? pom::detail::concat(source_, ": line ", line, ": ") : source_ + ": ";
  }

  std::set<std::string> given() && { return std::move(given_); }

 private:
  std::span<const BoundField> all_;
  std::string source_;
  bool lines_;
  std::set<std::string> given_;
};

// ---- a.b=c ----

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

bool is_text(const BoundField& bound) {
  return std::holds_alternative<std::string*>(bound.value) ||
         std::holds_alternative<std::optional<std::string>*>(bound.value);
}

// {value = …}: the value as TOML, or the text itself where the field is a text and it is not in quotes, so
// that neither a path nor a name that looks like a number needs them. Nothing where it is no value.
std::optional<toml::table> value_of(std::string_view text, const BoundField& bound) {
  const bool in_quotes = text.starts_with('"') || text.starts_with('\'');
  if (is_text(bound) && !in_quotes) return toml::table{{"value", std::string(text)}};
  try {
    toml::table table = parse(pom::detail::concat("value = ", text), "");
    if (table.size() == 1) return table;  // more: there were lines behind the value
  } catch (const Error&) {
  }
  return std::nullopt;
}

// ---- fields to text ----

std::string value_text(bool value) {
  return value ? "true" : "false";
}
std::string value_text(std::int64_t value) {
  return std::to_string(value);
}
std::string value_text(double value) {
  return number_text(value);
}
std::string value_text(const std::string& value) {
  return toml_quoted(value);
}
template <class Element>
std::string value_text(const std::vector<Element>& list) {
  std::vector<std::string> elements;
  for (const Element& element : list) elements.push_back(value_text(element));
  return detail::list_text(elements, "");
}
template <class Value>
std::string value_text(const std::optional<Value>& value) {
  return value ? value_text(*value) : "";
}

// A line of a file: "name = value", and what its comment says.
struct Line {
  std::string text;
  std::string_view help;
};

std::vector<Line> lines_of(std::span<const BoundField> fields, const std::string& prefix) {
  std::vector<Line> lines;
  for (const BoundField& bound : fields) {
    if (!bound.field.saved) continue;
    const std::string name(bound.field.name);
    std::visit(
        [&]<class Pointer>(Pointer pointer) {
          if constexpr (!std::is_same_v<Pointer, std::monostate>)
            if (const std::string value = value_text(*pointer); !value.empty()) {
              check(detail::find_invalid_utf8(value) == value.size(), "write_toml: ", prefix, name,
                    ": expected a text in UTF-8, got other bytes");
              lines.push_back({name + " = " + value, bound.field.help});
            }
        },
        bound.value);
  }
  return lines;
}

// Comments stand behind values, one below the other where that is not too far to the right, and before those
// that are long.
std::string text_of(std::span<const Line> lines) {
  constexpr std::size_t far = 36, longest = 100;
  std::size_t column = 0;
  for (const Line& line : lines)
    if (line.text.size() <= far) column = std::max(column, line.text.size());
  std::string text;
  for (const Line& line : lines) {
    const std::size_t gap = 2 + (line.text.size() < column ? column - line.text.size() : 0);
    const bool several = line.text.find('\n') != std::string::npos;
    if (line.help.empty())
      text += line.text;
    else if (several || line.text.size() + gap + 2 + line.help.size() > longest)
      text.append("# ").append(line.help).append("\n").append(line.text);
    else
      text.append(line.text).append(gap, ' ').append("# ").append(line.help);
    text += '\n';
  }
  return text;
}

void write_table(std::span<const BoundField> fields, const std::string& path, std::string_view help,
                 std::string& text) {
  const std::string prefix = path.empty() ? "" : path + ".";
  const std::string lines = text_of(lines_of(fields, prefix));
  if (!text.empty()) text += '\n';
  if (!path.empty() && !help.empty()) text.append("# ").append(help).append("\n");
  if (!path.empty()) text += "[" + path + "]\n";
  text += lines;
  for (const BoundField& bound : fields)
    if (bound.field.saved && std::holds_alternative<std::monostate>(bound.value))
      write_table(bound.inner, prefix + std::string(bound.field.name), bound.field.help, text);
}

}  // namespace

std::string read_toml_text(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = detail::read_file(path, "toml read", max_toml_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string toml_value(const BoundField& bound) {
  return std::visit(
      []<class Pointer>(Pointer pointer) {
        if constexpr (std::is_same_v<Pointer, std::monostate>)
          return std::string();
        else
          return value_text(*pointer);
      },
      bound.value);
}

std::set<std::string> read_toml(std::string_view text, std::span<const BoundField> fields,
                                std::string_view source) {
  Taker taker(fields, source, true);
  taker.take_table(parse(text, source), fields, "");
  return std::move(taker).given();
}

std::string set_field(std::string_view assignment, std::span<const BoundField> fields,
                      std::string_view source) {
  const std::size_t equals = assignment.find('=');
  const std::string_view path = trimmed(assignment.substr(0, equals));
  check(equals != std::string_view::npos && !path.empty(), source, ": expected field=value, got ",
        detail::beginning(toml_quoted(assignment), "…"));
  Taker taker(fields, source, false);
  std::string prefix;
  std::span<const BoundField> inner = fields;
  std::string_view rest = path;
  for (std::size_t dot; (dot = rest.find('.')) != std::string_view::npos; rest.remove_prefix(dot + 1)) {
    inner = taker.at(rest.substr(0, dot), inner, prefix, 0).inner;
    prefix += std::string(rest.substr(0, dot)) + ".";
  }
  const BoundField& bound = taker.at(rest, inner, prefix, 0);
  const std::string_view text = trimmed(assignment.substr(equals + 1));
  const std::optional<toml::table> value = value_of(text, bound);
  if (!value)
    fail(taker.where(0), path, ": expected ",
         std::visit([](auto pointer) { return kind(pointer); }, bound.value), ", got ",
         text.empty() ? "nothing" : detail::beginning(std::string(text), "…"));
  taker.take_field(*value->get("value"), bound, prefix, 0);
  return prefix + std::string(bound.field.name);
}

std::string write_toml(std::span<const BoundField> fields) {
  std::string text;
  write_table(fields, "", "", text);
  return text;
}

}  // namespace pom::io
