#include "pom/serve/errors.h"

#include <algorithm>
#include <cmath>

#include "pom/base/shown.h"
#include "pom/generate/request.h"
#include "pom/serve/json.h"

namespace pom::serve {
namespace {

const char* type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

bool is_field(std::string_view name) {
  static const std::vector<std::string> names = [] {
    generate::Request request;
    return field_names(request);
  }();
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

net::HttpResponse error_response(const ApiError& error) {
  Json inner = {{"message", shown(error.message, 2000)},
                {"type", type_of(error.status)},
                {"param", error.param.empty() ? Json(nullptr) : Json(error.param)},
                {"code", error.code.empty() ? Json(nullptr) : Json(error.code)}};
  net::HttpResponse response = json_response({{"error", std::move(inner)}}, error.status);
  response.headers.set("Cache-Control", "no-store");
  if (error.retry_after)
    response.headers.set("Retry-After", std::to_string(static_cast<long>(std::ceil(*error.retry_after))));
  if (!error.retry) response.headers.set("x-should-retry", "false");
  return response;
}

net::HttpResponse error_response(int status, std::string_view code, std::string_view message) {
  ApiError error(status, std::string(code), std::string(message));
  error.retry = status == 503 || status == 429;
  return error_response(error);
}

// "request: steps: expected 1 to 10000, got 0", "sample: class: …": the first part that is a field's name.
ApiError field_error(std::string_view message) {
  std::string param;
  std::string_view text = message;
  for (const std::string_view source : {"request: ", "sample: "})
    if (text.starts_with(source)) text.remove_prefix(source.size());
  const std::string_view first = text.substr(0, text.find_first_of(":= "));
  if (is_field(first)) param = first;
  if (text.find(": unknown field") != std::string_view::npos)
    return {400, "unknown_parameter", std::string(text), std::string(text.substr(0, text.find(':')))};
  const bool range =
      text.find("expected") != std::string_view::npos &&
      (text.find(" to ") != std::string_view::npos || text.find("at least") != std::string_view::npos ||
       text.find("at most") != std::string_view::npos);
  return {400, range && !param.empty() ? "out_of_range" : "invalid_value", std::string(text), param};
}

}  // namespace pom::serve
