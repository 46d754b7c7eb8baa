#include "pom/serve/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/generate/metadata.h"

namespace pom::serve {
namespace {

constexpr std::int64_t most_seed = (std::int64_t{1} << 53) - 1;  // what JavaScript counts to

// Files of the machine that serves, and what a route decides by itself.
constexpr std::array<std::string_view, 6> local = {"init",       "strength", "continue",
                                                   "save_state", "stream",   "window"};

bool means_something(const Field& field, const ModelInfo& model, bool live) {
  if (std::ranges::find(local, field.name) != local.end()) return false;
  if (live && (field.name == "frames" || field.name == "count" || field.name == "prompt_at")) return false;
  if (field.needs == generate::needs::classes) return !model.text;
  if (field.needs == generate::needs::text) return model.text;
  if (field.needs == generate::needs::clips) return model.clips;
  if (field.needs == generate::needs::streams) return model.streams;
  return true;
}

template <class Value>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<Value, bool>) return "boolean";
  if constexpr (std::is_same_v<Value, std::int64_t>) return "integer";
  if constexpr (std::is_same_v<Value, double>) return "number";
  return "string";
}

template <class Value>
Json type_of(const Value*) {
  return type_name<Value>();
}
template <class Value>
Json type_of(const std::optional<Value>*) {
  return type_name<Value>();
}
template <class Value>
Json type_of(const std::vector<Value>*) {
  return type_name<Value>();
}
Json type_of(const std::monostate&) {
  return "object";
}

template <class Value>
Json default_of(const Value* value) {
  return *value;
}
template <class Value>
Json default_of(const std::optional<Value>* value) {
  return *value ? Json(**value) : Json(nullptr);
}
template <class Value>
Json default_of(const std::vector<Value>*) {
  return nullptr;
}
Json default_of(const std::monostate&) {
  return nullptr;
}

void narrow(Json& property, const char* side, double limit, bool smaller) {
  const bool has = property.contains(side);
  const double old = has ? property[side].get<double>() : 0;
  const double bound = !has ? limit : smaller ? std::min(old, limit) : std::max(old, limit);
  property[side] = bound == std::floor(bound) ? Json(static_cast<std::int64_t>(bound)) : Json(bound);
}

Json property_of(const BoundField& bound, const ModelInfo& model) {
  const Field& field = bound.field;
  Json property;
  property["type"] = std::visit([](const auto& value) { return type_of(value); }, bound.value);
  if (field.numeric || field.name == "class") property["type"] = {"string", "integer"};
  if (field.name == "omega") property["type"] = {"string", "number"};
  if (field.one_or_more) {
    Json one = {{"type", property["type"]}};
    property = {{"oneOf", {one, {{"type", "array"}, {"items", one}}}}};
  }
  property["description"] = field.help;
  if (std::isfinite(field.least)) narrow(property, "minimum", field.least, false);
  if (std::isfinite(field.most)) narrow(property, "maximum", field.most, true);
  if (!field.choices.empty()) property[field.closed ? "enum" : "examples"] = field.choices;
  if (field.name == "class" && !model.classes.empty()) property["examples"] = model.classes;
  if (const Json value = std::visit([](const auto& v) { return default_of(v); }, bound.value);
      !value.is_null())
    property["default"] = value;
  property["x-group"] = field.group;
  return property;
}

}  // namespace

Json request_schema(const Backend& backend, std::size_t model, const QueueLimits& limits, bool live) {
  const ModelInfo& info = backend.models().at(model);
  generate::Request defaults = backend.defaults(model);
  defaults.class_name.reset(), defaults.prompt.clear(), defaults.omega.reset();
  if (live) defaults.steps = std::min(defaults.steps.value_or(1), most_usual_live_steps);
  Json properties = Json::object();
  for (const BoundField& bound : bind_fields(defaults)) {
    const Field& field = bound.field;
    if (!means_something(field, info, live)) continue;
    Json property = property_of(bound, info);
    if (field.name == "seed")
      property = {{"type", "integer"},
                  {"description", "seed of the first item, one more for each that follows; -1: a random one"},
                  {"minimum", -1},
                  {"maximum", most_seed},
                  {"default", -1},
                  {"x-group", field.group}};
    if (field.name == "prompt")
      property = {{"type", "string"},
                  {"description", "what it shows"},
                  {"maxLength", limits.prompt_bytes},
                  {"x-group", field.group}};
    if (field.name == "count") narrow(property, "maximum", static_cast<double>(limits.items), true);
    if (field.name == "steps") narrow(property, "maximum", static_cast<double>(limits.steps), true);
    if (field.name == "dtype") property["enum"] = Json::array({*backend.defaults(model).dtype});
    if (field.name == "cfg_scale" || field.name == "omega")
      property["x-important"] = field.name == "cfg_scale";
    properties[std::string(field.name)] = std::move(property);
  }
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", info.id},
          {"type", "object"},
          {"additionalProperties", false},
          {"required", Json::array({info.text ? "prompt" : "class"})},
          {"properties", std::move(properties)}};
}

generate::Request request_of(const Json& object, const ModelInfo& model) {
  generate::Request known;
  std::vector<std::string> names;
  for (const BoundField& bound : bind_fields(known))
    if (means_something(bound.field, model, false)) names.emplace_back(bound.field.name);
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(names, key) == names.end())
      throw ApiError(400, "unknown_parameter", key + ": unknown field" + suggestion(key, names), key);
  if (const auto seed = object.find("seed"); seed != object.end())
    for (const Json& one : seed->is_array() ? *seed : Json::array({*seed}))
      if (one.is_number() && (one.get<double>() < -1 || one.get<double>() > static_cast<double>(most_seed)))
        throw ApiError(400, "out_of_range",
                       detail::concat("seed: expected -1 to ", most_seed, ", got ", one.dump()), "seed");
  Json said = Json::object();  // null is the same as leaving a field out, and a class may be a number
  for (const auto& [key, value] : object.items())
    if (!value.is_null())
      said[key] = key.ends_with("class") && value.is_number_integer() ? Json(value.dump()) : value;
  try {
    generate::Request request =
        generate::request_from_json(said.dump(-1, ' ', false, Json::error_handler_t::replace), "request");
    if (!said.contains("seed")) request.seed = {-1};
    return request;
  } catch (const Error& error) {
    throw field_error(error.what());
  }
}

}  // namespace pom::serve
