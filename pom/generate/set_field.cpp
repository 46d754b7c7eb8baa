#include "pom/generate/set_field.h"

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/json_fields.h"

namespace pom::generate {
namespace {

bool holds_text(std::span<const BoundField> fields, std::string_view path) {
  const std::size_t dot = path.find('.');
  const BoundField* field = find_field(fields, path.substr(0, dot));
  if (field == nullptr) return false;
  if (dot != std::string_view::npos) return holds_text(field->inner, path.substr(dot + 1));
  return std::holds_alternative<std::string*>(field->value);
}

// Looks like a value of JSON; other words are texts.
bool is_json_value(std::string_view text) {
  const bool number = text.find_first_not_of("+-.0123456789eE") == std::string_view::npos;
  return text == "true" || text == "false" || text.starts_with('[') || text.starts_with('"') ||
         (number && !text.empty());
}

}  // namespace

// "network.order=3" becomes {"network": {"order": 3}}.
std::set<std::string> set_json_field(const std::string& assignment, std::span<const BoundField> fields) {
  const std::size_t equals = assignment.find('=');
  check(equals != std::string::npos && equals > 0, "--set: expected FIELD=VALUE, such as network.order=3, ",
        "got \"", shown(assignment), "\"");
  const std::string path = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  const bool word = holds_text(fields, path) || !is_json_value(text);
  std::string json = word && !text.starts_with('"') ? io::json_quoted(text) : text;
  std::string_view rest = path;
  for (std::size_t dot = rest.rfind('.');; dot = rest.rfind('.')) {
    const bool last = dot == std::string_view::npos;
    json = detail::concat("{", io::json_quoted(last ? rest : rest.substr(dot + 1)), ": ", json, "}");
    if (last) break;
    rest = rest.substr(0, dot);
  }
  return io::read_json(json, fields, "--set");
}

}  // namespace pom::generate
