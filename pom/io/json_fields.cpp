#include "pom/io/json_fields.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"
#include "pom/io/field_text.h"
#include "pom/io/folder_swap.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

using Json = nlohmann::ordered_json;

// ---- text to a tree ----

// "line 3, column 7" of the byte before `end`, both from 1.
std::string place(std::string_view text, std::size_t end) {
  const std::string_view before = text.substr(0, std::min(end > 0 ? end - 1 : 0, text.size()));
  const std::size_t line = 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  const std::size_t start = before.rfind('\n');
  const std::size_t column = before.size() - (start == std::string_view::npos ? 0 : start + 1) + 1;
  return pom::detail::concat("line ", line, ", column ", column);
}

// The reason within "[json.exception.parse_error.101] parse error at line 1, column 2: reason".
std::string reason(std::string_view message) {
  for (const std::string_view mark : {"column ", "] "})
    if (const std::size_t at = message.find(mark); at != std::string_view::npos) {
      message.remove_prefix(at + mark.size());
      if (const std::size_t colon = message.find(": "); mark == "column " && colon != std::string_view::npos)
        message.remove_prefix(colon + 2);
      break;
    }
  return pom::shown(message, 200);  // it repeats what it could not read, however long
}

// Follows the parser, which itself knows neither a limit of depth nor keys that come twice.
class Watch {
 public:
  explicit Watch(std::string_view source) : source_(source) {}

  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start)
      check(depth < max_json_depth, source_, ": expected at most ", max_json_depth, " levels, got more");
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      check(keys_.back().insert(key).second, source_, ": ", pom::shown(key), ": duplicate key");
    }
    return true;
  }

 private:
  std::string source_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

Json parse(std::string_view text, std::string_view source) {
  check(text.size() <= max_json_bytes, source, ": expected at most ", max_json_bytes, " bytes of JSON, got ",
        text.size());
  if (const std::size_t end = text.find('\0'); end != std::string_view::npos)  // where the parser would stop
    fail(source, ": ", place(text, end + 1), ": expected text, got a byte 0");
  try {
    return Json::parse(text, Watch(source));
  } catch (const Json::parse_error& error) {
    fail(source, ": ", place(text, error.byte), ": ", reason(error.what()));
  } catch (const Json::exception& error) {
    fail(source, ": ", reason(error.what()));
  }
}

// A value as a message shows it.
std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return value.empty() ? "an empty list" : "a list";
  return pom::shown(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

Json parse_object(std::string_view text, std::string_view source) {
  Json root = parse(text, source);
  check(root.is_object(), source, ": expected an object {…}, got ", shown(root));
  return root;
}

// ---- a tree to fields ----

// Where a value is: what messages begin with, and its field.
struct Site {
  std::string where;  // "config.json: network."
  const Field& field;

  [[noreturn]] void refuse(std::string_view expected, const Json& value) const {
    fail(where, field.name, ": expected ", expected, ", got ", shown(value));
  }
};

void take(const Json& value, bool& into, const Site& site) {
  if (!value.is_boolean()) site.refuse("true or false", value);
  into = value.get<bool>();
}

void take(const Json& value, std::int64_t& into, const Site& site) {
  const bool integer = value.is_number_integer();
  const bool large = value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX;
  if (!integer) site.refuse("an integer", value);
  if (large) site.refuse("an integer of 63 bits", value);
  into = value.get<std::int64_t>();
  check_value(site.field, static_cast<double>(into), site.where);
}

void take(const Json& value, double& into, const Site& site) {
  if (!value.is_number()) site.refuse("a number", value);
  into = value.get<double>();
  check_value(site.field, into, site.where);
}

void take(const Json& value, std::string& into, const Site& site) {
  const bool number = site.field.numeric && value.is_number();
  if (!value.is_string() && !number)
    site.refuse(site.field.numeric ? "a number or a string" : "a string", value);
  into = number ? value.dump() : value.get<std::string>();
  check_value(site.field, into, site.where);
}

template <class Element>
void take(const Json& value, std::vector<Element>& into, const Site& site) {
  constexpr bool texts = std::is_same_v<Element, std::string>;
  if (site.field.one_or_more && !value.is_array() && !value.is_null()) {
    std::vector<Element> one(1);
    take(value, one.front(), site);
    into = std::move(one);
    return;
  }
  const std::string_view several = texts ? "a list of strings" : "a list of integers";
  const std::string_view one_too =
      texts ? "a string or a list of strings" : "an integer or a list of integers";
  if (!value.is_array()) site.refuse(site.field.one_or_more ? one_too : several, value);
  std::vector<Element> elements(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string name = pom::detail::concat(site.field.name, "[", i, "]");
    Field element = site.field;
    element.name = name;
    take(value[i], elements[i], Site{site.where, element});
  }
  into = std::move(elements);
}

template <class Value>
void take(const Json& value, std::optional<Value>& into, const Site& site) {
  if (value.is_null())
    into.reset();
  else
    take(value, into.emplace(), site);
}

void take_object(const Json& object, std::span<const BoundField> fields, const std::string& source,
                 const std::string& prefix, JsonOrigin origin, std::set<std::string>& given) {
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    const Json& value = item.value();
    const BoundField* bound = find_field(fields, key);
    if (origin == JsonOrigin::foreign && (bound == nullptr || value.is_null())) continue;
    if (bound == nullptr) {
      std::vector<std::string> names;
      for (const BoundField& b : fields) names.emplace_back(b.field.name);
      fail(source, prefix, pom::shown(key, 60), ": unknown field", suggestion(key, names));
    }
    const std::string name(bound->field.name);
    check(given.insert(prefix + name).second, source, prefix, name, ": given twice, also as ",
          bound->field.formerly);
    const Site site{source + prefix, bound->field};
    std::visit(
        [&]<class Pointer>(Pointer pointer) {
          if constexpr (!std::is_same_v<Pointer, std::monostate>)
            take(value, *pointer, site);
          else if (value.is_object())
            take_object(value, bound->inner, source, prefix + name + ".", origin, given);
          else
            site.refuse("an object", value);
        },
        bound->value);
  }
}

// ---- fields to a tree ----

template <class Value>
void put(Json& object, const Field& field, const Value& value) {
  object[std::string(field.name)] = value;
}
void put(Json& object, const Field& field, const std::string& value) {
  const Json number = field.numeric ? Json::parse(value, nullptr, /*allow_exceptions=*/false) : Json();
  object[std::string(field.name)] = number.is_number() ? number : Json(value);
}
template <class Element>
void put(Json& object, const Field& field, const std::vector<Element>& value) {
  if (!field.one_or_more || value.size() > 1)
    object[std::string(field.name)] = value;
  else if (value.size() == 1)
    object[std::string(field.name)] = value.front();
}
template <class Value>
void put(Json& object, const Field& field, const std::optional<Value>& value) {
  if (value) put(object, field, *value);
}

Json tree(std::span<const BoundField> fields) {
  Json object = Json::object();
  for (const BoundField& bound : fields) {
    if (!bound.field.saved) continue;
    const std::string name(bound.field.name);
    std::visit(
        [&]<class Pointer>(Pointer pointer) {
          if constexpr (std::is_same_v<Pointer, std::monostate>)
            object[name] = tree(bound.inner);
          else
            put(object, bound.field, *pointer);
        },
        bound.value);
  }
  return object;
}

std::string line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Objects with a field to a line; lists of numbers and texts fill lines of some 100 characters.
std::string pages(const Json& value, const std::string& indent = "") {
  const std::string inner = indent + "  ";
  std::string text;
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, member] : value.items())
      text += (text.empty() ? "{\n" : ",\n") + inner + json_quoted(key) + ": " + pages(member, inner);
    return text + "\n" + indent + "}";
  }
  if (!value.is_array() || value.empty()) return line(value);
  std::vector<std::string> elements;
  for (const Json& element : value) elements.push_back(line(element));
  return detail::list_text(elements, indent);
}

}  // namespace

std::set<std::string> read_json(std::string_view text, std::span<const BoundField> fields,
                                std::string_view source, JsonOrigin origin) {
  const Json root = parse_object(text, source);
  std::set<std::string> given;
  take_object(root, fields, std::string(source) + ": ", "", origin, given);
  return given;
}

std::vector<double> read_json_numbers(std::string_view text, std::string_view key, std::string_view source) {
  const Json root = parse_object(text, source);
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return {};
  check(found->is_array(), source, ": ", key, ": expected a list of numbers, got ", shown(*found));
  std::vector<double> numbers;
  for (const Json& element : *found) {
    check(element.is_number(), source, ": ", key, ": expected a list of numbers, got ", shown(element),
          " in it");
    numbers.push_back(element.get<double>());
  }
  return numbers;
}

std::vector<std::pair<std::string, std::string>> read_json_texts(std::string_view text, std::string_view key,
                                                                 std::string_view source) {
  const Json root = parse_object(text, source);
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return {};
  check(found->is_object(), source, ": ", key, ": expected an object of texts, got ", shown(*found));
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [name, value] : found->items()) {
    check(value.is_string(), source, ": ", key, ".", pom::shown(name, 60), ": expected a string, got ",
          shown(value));
    texts.emplace_back(name, value.get<std::string>());
  }
  return texts;
}

std::vector<std::pair<std::string, double>> read_json_values(std::string_view text, std::string_view key,
                                                             std::string_view source) {
  const Json root = parse_object(text, source);
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return {};
  check(found->is_object(), source, ": ", key, ": expected an object of numbers, got ", shown(*found));
  std::vector<std::pair<std::string, double>> values;
  for (const auto& [name, value] : found->items()) {
    check(value.is_number() || value.is_null(), source, ": ", key, ".", pom::shown(name, 60),
          ": expected a number, got ", shown(value));
    values.emplace_back(name,
                        value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  }
  return values;
}

void read_json_list(std::string_view text, const std::function<std::vector<BoundField>()>& element,
                    std::string_view source) {
  const Json root = parse(text, source);
  check(root.is_array(), source, ": expected a list of objects, got ", shown(root));
  for (std::size_t i = 0; i < root.size(); ++i) {
    const std::string where = pom::detail::concat(source, ": [", i, "]");
    check(root[i].is_object(), where, ": expected an object {…}, got ", shown(root[i]));
    std::set<std::string> given;
    take_object(root[i], element(), where + ": ", "", JsonOrigin::foreign, given);
  }
}

std::string read_json_text(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = detail::read_file(path, "json read", max_json_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string read_json_text(const OpenFolder& folder, const std::string& name) {
  const std::vector<std::byte> bytes =
      detail::read_file(folder.open(name, "json read"), folder.path_of(name), "json read", max_json_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string write_json(std::span<const BoundField> fields, JsonStyle style) {
  const Json root = tree(fields);
  return style == JsonStyle::line ? line(root) : pages(root) + "\n";
}

std::string json_quoted(std::string_view text) {
  return line(Json(text));
}

}  // namespace pom::io
