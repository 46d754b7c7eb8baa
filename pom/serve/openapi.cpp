#include "pom/serve/openapi.h"

#include "pom/base/build_info.h"

namespace pom::serve {
namespace {

Json parameters_of(std::string pattern) {
  Json all = Json::array();
  for (std::size_t open = pattern.find('{'); open != std::string::npos; open = pattern.find('{', open + 1)) {
    const std::size_t close = pattern.find('}', open);
    all.push_back({{"name", pattern.substr(open + 1, close - open - 1)},
                   {"in", "path"},
                   {"required", true},
                   {"schema", {{"type", "string"}}}});
  }
  return all;
}

Json content(const Json& schema) {
  return {{"application/json", {{"schema", schema}}}};
}

// Of /v1/videos: OpenAI's fields and those of the models that make clips.
Json video_schema(const Backend& backend, const QueueLimits& limits) {
  const Json text = {{"type", "string"}};
  Json properties = {{"model", text}, {"seconds", {{"type", {"string", "number"}}}}, {"size", text}};
  for (std::size_t model = 0; model < backend.models().size(); ++model)
    if (backend.models()[model].clips) {
      const Json fields = request_schema(backend, model, limits).at("properties");
      for (const auto& [name, field] : fields.items())
        if (!properties.contains(name) && name != "count") properties[name] = field;
    }
  return {{"type", "object"}, {"required", Json::array({"prompt"})}, {"properties", std::move(properties)}};
}

}  // namespace

Json openapi(const net::Router& router, const Backend& backend, const QueueLimits& limits) {
  const Json text = {{"type", "string"}}, text_or_null = {{"type", {"string", "null"}}};
  Json inner = {{"type", "object"}, {"required", {"message", "type", "param", "code"}}};
  inner["properties"] = {{"message", text}, {"type", text}, {"param", text_or_null}, {"code", text_or_null}};
  Json schemas;
  schemas["Error"] = {
      {"type", "object"}, {"required", Json::array({"error"})}, {"properties", {{"error", inner}}}};
  Json any = Json::array();
  for (std::size_t model = 0; model < backend.models().size(); ++model) {
    Json schema = request_schema(backend, model, limits);
    schema.erase("$schema");
    schema["properties"]["model"] = {{"const", backend.models()[model].id}};
    schema["properties"]["previews"] = {{"type", "boolean"}, {"default", false}};
    const std::string name = "Job." + backend.models()[model].id;
    schemas[name] = std::move(schema);
    any.push_back({{"$ref", "#/components/schemas/" + name}});
  }
  const Json error = {{"description", "a mistake"},
                      {"content", content({{"$ref", "#/components/schemas/Error"}})}};
  Json paths = Json::object();
  for (const net::Route& route : router.routes()) {
    Json operation = {{"summary", route.name},
                      {"responses", {{"200", {{"description", "done"}}}, {"4XX", error}, {"5XX", error}}}};
    if (Json parameters = parameters_of(route.pattern); !parameters.empty())
      operation["parameters"] = std::move(parameters);
    if (route.method == "POST") {
      Json body = {{"type", "object"}};
      if (route.pattern == "/pom/v1/jobs" || route.pattern == "/pom/v1/forecast") body = {{"anyOf", any}};
      if (route.pattern == "/v1/videos") body = video_schema(backend, limits);
      operation["requestBody"] = {{"content", content(body)}};
      if (route.pattern == "/v1/videos")
        operation["requestBody"]["content"]["multipart/form-data"] = {{"schema", body}};
    }
    paths[route.pattern][net::lowered(route.method)] = std::move(operation);
  }
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "pom serve"}, {"version", std::string(build_info().version)}}},
          {"paths", std::move(paths)},
          {"components",
           {{"schemas", std::move(schemas)},
            {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
}

}  // namespace pom::serve
