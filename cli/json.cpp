#include "cli/json.h"

#include <charconv>
#include <cmath>

#include "pom/io/json_fields.h"

namespace pom::cli {

JsonObject& JsonObject::raw(std::string_view key, std::string_view json) {
  if (!members_.empty()) members_ += ", ";
  members_ += io::json_quoted(key);
  members_ += ": ";
  members_ += json;
  return *this;
}

JsonObject& JsonObject::add(std::string_view key, std::string_view text) {
  return raw(key, io::json_quoted(text));
}

JsonObject& JsonObject::add(std::string_view key, double value) {
  if (!std::isfinite(value)) return raw(key, "null");
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;  // the shortest that reads back
  return raw(key, std::string_view(text, end));
}

JsonObject& JsonObject::add(std::string_view key, const std::vector<std::string>& texts) {
  return raw(key, json_list(texts, [](const std::string& text) { return io::json_quoted(text); }));
}

JsonObject& JsonObject::add(std::string_view key, const std::vector<std::int64_t>& values) {
  return raw(key, json_list(values, [](std::int64_t value) { return std::to_string(value); }));
}

JsonObject& JsonObject::add(std::string_view key, const std::vector<JsonObject>& objects) {
  return raw(key, json_list(objects, [](const JsonObject& object) { return object.text(); }));
}

}  // namespace pom::cli
