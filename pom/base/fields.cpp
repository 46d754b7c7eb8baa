#include "pom/base/fields.h"

#include <algorithm>
#include <cmath>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"

namespace pom {
namespace {

std::string number_text(double value) {
  if (std::abs(value) < 1e15 && value == std::floor(value))
    return std::to_string(static_cast<long long>(value));
  return detail::concat(value);
}

}  // namespace

const BoundField* find_field(std::span<const BoundField> fields, std::string_view name) {
  for (const BoundField& bound : fields)
    if (bound.field.name == name || (!name.empty() && bound.field.formerly == name)) return &bound;
  return nullptr;
}

std::string range_text(const Field& field) {
  const bool low = std::isfinite(field.least), high = std::isfinite(field.most);
  if (low && high) return number_text(field.least) + " to " + number_text(field.most);
  if (low) return "at least " + number_text(field.least);
  if (high) return "at most " + number_text(field.most);
  return {};
}

void check_value(const Field& field, double value, std::string_view where) {
  const bool inside = value >= field.least && value <= field.most;  // false for nan
  if (inside) return;
  const std::string range = range_text(field);
  fail(where, field.name, ": expected ", range.empty() ? "a number" : range, ", got ", number_text(value));
}

void check_value(const Field& field, std::string_view value, std::string_view where) {
  if (field.choices.empty() || !field.closed ||
      std::ranges::find(field.choices, value) != field.choices.end())
    return;
  fail(where, field.name, ": unknown value \"", shown(value), "\"", suggestion(value, field.choices));
}

}  // namespace pom
