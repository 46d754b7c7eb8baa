// JSON for --json: an object whose keys stay in the order they were given, on one line.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pom::cli {

class JsonObject {
 public:
  JsonObject& add(std::string_view key, std::string_view text);
  JsonObject& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  JsonObject& add(std::string_view key, const std::string& text) { return add(key, std::string_view(text)); }
  JsonObject& add(std::string_view key, double value);  // null where it is not finite
  JsonObject& add(std::string_view key, std::same_as<bool> auto value) {
    return raw(key, value ? "true" : "false");
  }
  JsonObject& add(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
  JsonObject& add(std::string_view key, const JsonObject& value) { return raw(key, value.text()); }
  JsonObject& add(std::string_view key, const std::vector<std::string>& texts);
  JsonObject& add(std::string_view key, const std::vector<std::int64_t>& values);
  JsonObject& add(std::string_view key, const std::vector<JsonObject>& objects);
  JsonObject& raw(std::string_view key, std::string_view json);  // a value that is JSON already

  std::string text() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

// Values as a list, each as the JSON that `text` makes of it.
template <class Values, class Text>
std::string json_list(const Values& values, Text&& text) {
  std::string joined;
  for (const auto& value : values) joined += (joined.empty() ? "" : ", ") + text(value);
  return "[" + joined + "]";
}

}  // namespace pom::cli
