// JSON in and out of structs of declared fields (pom/base/fields.h). What a file may say is what the struct
// declares: a key that is no field is an error that suggests the nearest, as is a value of another type, out
// of its range or not among its choices, and a key that comes twice. Errors read "config.json: network.dim:
// expected an integer, got "big"".
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pom/base/fields.h"

namespace pom::io {

class OpenFolder;

inline constexpr std::size_t max_json_bytes = std::size_t{16} << 20;
inline constexpr int max_json_depth = 32;

// Whose file it is: ours says nothing but declared fields; of somebody else's the others are passed over, and
// null is the same as leaving any field out.
enum class JsonOrigin { ours, foreign };

// Sets the fields that the text gives, and leaves the others as they are; returns the paths of those given
// ("network", "network.dim"). An integer is written as one (384.0 is none), any number will do for a double,
// and null is the same as leaving an optional field out. `source` begins the messages.
std::set<std::string> read_json(std::string_view text, std::span<const BoundField> fields,
                                std::string_view source, JsonOrigin origin = JsonOrigin::ours);

// The list of numbers under a key of the outermost object, of somebody else's file; empty where it is null or
// not there.
std::vector<double> read_json_numbers(std::string_view text, std::string_view key, std::string_view source);

// The texts of the object of texts under a key likewise, in the file's order: {"weight_map": {name: file}}.
std::vector<std::pair<std::string, std::string>> read_json_texts(std::string_view text, std::string_view key,
                                                                 std::string_view source);

// The numbers of the object of numbers under a key likewise; null is not a number.
std::vector<std::pair<std::string, double>> read_json_values(std::string_view text, std::string_view key,
                                                             std::string_view source);

// A list of objects, of somebody else's file: `element` gives the fields of the next one.
void read_json_list(std::string_view text, const std::function<std::vector<BoundField>()>& element,
                    std::string_view source);

// The whole file at `path`, which is also the source in messages.
std::string read_json_text(const std::filesystem::path& path);
std::string read_json_text(const OpenFolder& folder, const std::string& name);

enum class JsonStyle { line, pages };  // all in one line, or indented as a person would

// Every field that belongs into files; optional ones where they are set.
std::string write_json(std::span<const BoundField> fields, JsonStyle style);

template <class Struct>
std::set<std::string> read_json(std::string_view text, Struct& options, std::string_view source,
                                JsonOrigin origin = JsonOrigin::ours) {
  const std::vector<BoundField> fields = bind_fields(options);
  return read_json(text, std::span<const BoundField>(fields), source, origin);
}

template <class Struct>
std::vector<Struct> read_json_records(std::string_view text, std::string_view source) {
  std::vector<Struct> records;
  const auto element = [&records] { return bind_fields(records.emplace_back()); };
  read_json_list(text, element, source);
  return records;
}

template <class Struct>
std::string write_json(Struct& options, JsonStyle style = JsonStyle::line) {
  const std::vector<BoundField> fields = bind_fields(options);
  return write_json(std::span<const BoundField>(fields), style);
}

// A text as JSON has it, in quotes and escaped; bytes that are not UTF-8 become U+FFFD.
std::string json_quoted(std::string_view text);

}  // namespace pom::io
