// TOML in and out of structs of declared fields (pom/base/fields.h); json_fields.h does the same for JSON.
// What a file may say is what the struct declares: a key that is no field is an error that suggests the
// nearest, as is a value of another type, out of its range or not among its choices. Errors read
// "shapes.toml: line 12: optimizer.lr: expected a number, got "fast"".
#pragma once

#include <cstddef>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/fields.h"

namespace pom::io {

inline constexpr std::size_t max_toml_bytes = std::size_t{16} << 20;
inline constexpr int max_toml_depth = 32;  // of dotted keys, and of values

// Sets the fields that the text gives and leaves the others; returns the paths of those given ("network",
// "network.dim"). A struct of fields is a table, [network] or network.dim = 384. An integer is written as
// one; any number will do for a double.
std::set<std::string> read_toml(std::string_view text, std::span<const BoundField> fields,
                                std::string_view source);

// One "a.b=c" of --set: c is a TOML value, or a bare word or path where the field is a text. Returns the
// field's path.
std::string set_field(std::string_view assignment, std::span<const BoundField> fields,
                      std::string_view source = "--set");

// The whole file at `path`, which is also the source in messages.
std::string read_toml_text(const std::filesystem::path& path);

// A field's value as write_toml writes it: 384, "flow", [64, 64]; empty for a struct of fields and for an
// optional one that is not set.
std::string toml_value(const BoundField& bound);

// Every field that belongs into files, tables in the order of the struct, each with its help as a comment.
// What read_toml reads back is equal to the bit, numbers too.
std::string write_toml(std::span<const BoundField> fields);

template <class Struct>
std::set<std::string> read_toml(std::string_view text, Struct& options, std::string_view source) {
  const std::vector<BoundField> fields = bind_fields(options);
  return read_toml(text, std::span<const BoundField>(fields), source);
}
template <class Struct>
std::string set_field(std::string_view assignment, Struct& options, std::string_view source = "--set") {
  const std::vector<BoundField> fields = bind_fields(options);
  return set_field(assignment, std::span<const BoundField>(fields), source);
}
template <class Struct>
std::string write_toml(Struct& options) {
  const std::vector<BoundField> fields = bind_fields(options);
  return write_toml(std::span<const BoundField>(fields));
}

}  // namespace pom::io
