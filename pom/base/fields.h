// Options declared once. A struct of options has a member template `fields(visit)` that calls the visitor
// with every field's description and the field itself; reading and writing JSON, flags of the program, help
// and error messages are visitors (pom/io/json_fields.h, cli/flags.h).
//
//   struct Request {
//     std::optional<std::int64_t> steps;
//     template <class Visit> void fields(Visit&& visit) {
//       visit(Field{.name = "steps", .help = "steps of the sampler", .least = 1, .most = 10000}, steps);
//     }
//   };
//
// Field types: bool, std::int64_t, double, std::string, std::vector<std::string>, std::vector<std::int64_t>,
// std::optional of the first four, and structs of fields.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pom {

struct Field {
  std::string_view name;                                    // snake_case; its flag is --kebab-case
  std::string_view help;                                    // one line, no full stop
  std::string_view value = {};                              // what stands for the value in help: "N", "NAME"
  std::string_view group = {};                              // heading in help
  double least = -std::numeric_limits<double>::infinity();  // of numbers
  double most = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  // of names; empty: any
  bool closed =
      true;  // nothing but the choices will do; else they are for help, and who uses the value checks it
  bool saved = true;               // whether it belongs into files, or is only for this call
  std::string_view formerly = {};  // the name it had: still read in files, never written
  std::string_view needs =
      {};  // what a model must have for it to mean something; empty: nothing in particular
  // Of lists: one element may stand for the list of it, is written so, and nothing is written of an empty
  // one.
  bool one_or_more = false;
  bool numeric = false;  // of texts: "48" may come as the number 48, and is written so
};

// "steps: expected 1 to 10000, got 0": the range of a number and the choices of a name, checked the same way
// wherever the value came from. `where` comes before the field's name.
void check_value(const Field& field, double value, std::string_view where);
void check_value(const Field& field, std::string_view value, std::string_view where);

// "at least 1", "1 to 10000", "at most 1"; empty where anything goes.
std::string range_text(const Field& field);

// A field's value, wherever it lies. Nothing (monostate) stands for a struct of fields.
using FieldValue =
    std::variant<std::monostate, bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*,
                 std::vector<std::int64_t>*, std::optional<bool>*, std::optional<std::int64_t>*,
                 std::optional<double>*, std::optional<std::string>*>;

// A field of a certain struct, without its type: what visitors that are no templates work on.
struct BoundField {
  Field field;
  FieldValue value;
  std::vector<BoundField> inner = {};  // of a struct of fields
};

// The fields of a struct, which must outlive them.
template <class Struct>
std::vector<BoundField> bind_fields(Struct& options) {
  std::vector<BoundField> bound;
  options.fields([&]<class Value>(const Field& field, Value& value) {
    if constexpr (requires { value.fields([](const Field&, auto&) {}); })
      bound.push_back({field, std::monostate(), bind_fields(value)});
    else
      bound.push_back({field, &value});
  });
  return bound;
}

// The field of that name, now or formerly; nullptr where there is none.
const BoundField* find_field(std::span<const BoundField> fields, std::string_view name);

// The names of all fields of a struct, for suggestions.
template <class Struct>
std::vector<std::string> field_names(Struct& options) {
  std::vector<std::string> names;
  options.fields([&](const Field& field, auto&) { names.emplace_back(field.name); });
  return names;
}

}  // namespace pom
