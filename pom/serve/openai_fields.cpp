#include "pom/serve/openai_fields.h"

#include <array>
#include <type_traits>
#include <vector>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/generate/request.h"
#include "pom/net/multipart.h"
#include "pom/serve/errors.h"

namespace pom::serve {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 3> aliases = {
    {{"num_inference_steps", "steps"}, {"guidance_scale", "cfg_scale"}, {"sampler_name", "sampler"}}};

template <class Value>
constexpr bool is_text(const Value*) {
  if constexpr (requires { typename Value::value_type; } && !std::is_same_v<Value, std::string>)
    return std::is_same_v<typename Value::value_type, std::string>;
  else
    return std::is_same_v<Value, std::string>;
}
constexpr bool is_text(const std::monostate&) {
  return true;
}

// A text of a form as the field of that name wants it; what is none stays, to be complained of.
Json typed(const std::string& name, const std::string& text) {
  generate::Request request;
  const std::vector<BoundField> fields = bind_fields(request);
  const BoundField* const field = find_field(fields, name);
  const bool plain =
      field == nullptr || std::visit([](const auto& value) { return is_text(value); }, field->value);
  if (plain) return text;
  const Json value = Json::parse(text, nullptr, false);
  return value.is_number() || value.is_boolean() ? value : Json(text);
}

}  // namespace

void rename_aliases(Json& object) {
  for (const auto& [alias, field] : aliases) {
    const auto found = object.find(alias);
    if (found == object.end()) continue;
    if (object.contains(field))
      throw ApiError(400, "invalid_value",
                     detail::concat(alias, ": is another name of ", field, ", and both are given"), alias);
    Json value = *found;
    object.erase(alias);
    object[field] = std::move(value);
  }
}

void drop_nulls(Json& object) {
  std::vector<std::string> empty;
  for (const auto& [key, value] : object.items())
    if (value.is_null()) empty.push_back(key);
  for (const std::string& key : empty) object.erase(key);
}

void take_size(Json& object) {
  const std::string size = take_text(object, "size", "auto");
  if (size == "auto") return;
  generate::Request sized;
  try {
    generate::set_size(sized, size);
  } catch (const Error&) {
    throw ApiError(400, "invalid_value", "size: expected WxH or auto, got \"" + shown(size) + "\"", "size");
  }
  object["width"] = *sized.width, object["height"] = *sized.height;
}

Json form_object(const net::HttpRequest& request) {
  Json object = Json::object();
  try {
    const net::Form form = net::parse_form(request);
    for (const net::FormPart& part : form.parts()) {
      if (part.filename)
        throw ApiError(400, "not_supported",
                       shown(part.name) + ": expected no file: none of the models here begins with one",
                       shown(part.name));
      object[part.name] = std::string(part.data);
    }
  } catch (const Error& error) {
    throw ApiError(400, "invalid_value", error.what());
  }
  rename_aliases(object);
  for (const auto& [key, value] : object.items()) value = typed(key, value.get<std::string>());
  return object;
}

}  // namespace pom::serve
