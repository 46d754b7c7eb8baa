// The names and origins of auth.h; its keys are in keys.cpp.
#include "pom/net/auth.h"

#include <algorithm>
#include <array>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/net/url.h"

namespace pom::net {
namespace {

constexpr std::array<std::string_view, 3> own_names = {"localhost", "127.0.0.1", "[::1]"};

// "name." is "name".
std::string_view without_dot(std::string_view host) {
  if (host.size() > 1 && host.ends_with('.')) host.remove_suffix(1);
  return host;
}

struct Origin {
  std::string host, port;  // the port is never empty
  bool tls = false;
};

std::optional<Origin> parse_origin(std::string_view text) {
  Origin origin;
  const std::size_t scheme = text.find("://");
  if (scheme == std::string_view::npos) return std::nullopt;
  origin.tls = same_name(text.substr(0, scheme), "https");
  if (!origin.tls && !same_name(text.substr(0, scheme), "http")) return std::nullopt;
  std::optional<HostPort> rest = parse_host(text.substr(scheme + 3));
  if (!rest) return std::nullopt;
  origin.host = std::move(rest->host);
  origin.port = !rest->port.empty() ? std::move(rest->port) : origin.tls ? "443" : "80";
  return origin;
}

std::string text_of(const Origin& origin) {
  return (origin.tls ? "https://" : "http://") + origin.host + ":" + origin.port;
}

// Whether a page of this origin came from where the request goes. Behind a proxy that does TLS, Host has no
// port where the browser's address has none.
bool same_origin(const HttpRequest& request, const Origin& origin) {
  const std::optional<HostPort> host = parse_host(request.headers.get("Host"));
  if (!host || host->host != origin.host) return false;
  return host->port.empty() ? origin.port == (origin.tls ? "443" : "80") : host->port == origin.port;
}

bool follows_link(const HttpRequest& request) {
  return (request.method == "GET" || request.method == "HEAD") &&
         request.headers.get("Sec-Fetch-Mode") == "navigate" &&
         request.headers.get("Sec-Fetch-Dest") == "document";
}

}  // namespace

std::string forwarded_client(const HttpRequest& request, const std::vector<std::string>& proxies) {
  const auto trusted = [&](std::string_view address) {
    return std::ranges::find(proxies, address) != proxies.end();
  };
  if (!trusted(request.client)) return request.client;
  std::string client = request.client;
  std::string all;  // one list, whether a proxy adds to it or writes another line
  for (const auto& [name, value] : request.headers.all())
    if (same_name(name, "X-Forwarded-For")) all += (all.empty() ? "" : ",") + value;
  for (std::string_view rest = all; !rest.empty();) {
    const std::size_t comma = rest.rfind(',');
    std::string_view part = comma == std::string_view::npos ? rest : rest.substr(comma + 1);
    rest = rest.substr(0, comma == std::string_view::npos ? 0 : comma);
    while (part.starts_with(' ') || part.starts_with('\t')) part.remove_prefix(1);
    while (part.ends_with(' ') || part.ends_with('\t')) part.remove_suffix(1);
    if (part.empty() || part.size() > 45 ||
        part.find_first_not_of("0123456789abcdefABCDEF.:") != std::string_view::npos)
      break;
    client = lowered(part);
    if (!trusted(client)) break;
  }
  return client;
}

Access::Access(const std::vector<std::string>& hosts, const std::vector<std::string>& origins) {
  for (const std::string& each : hosts) {
    const std::optional<HostPort> host = parse_host(each);
    any_host_ = any_host_ || each == "*";
    check(each == "*" || (host && host->port.empty()), "allowed host: expected a name without a port, got \"",
          shown(each), "\"");
    if (host) hosts_.emplace_back(without_dot(host->host));
  }
  for (const std::string& each : origins) {
    const std::optional<Origin> origin = parse_origin(each);
    check(origin.has_value(), "allowed origin: expected one such as https://example.org, got \"", shown(each),
          "\"");
    origins_.push_back(text_of(*origin));
  }
}

bool Access::host_allowed(const HttpRequest& request) const {
  const std::optional<std::string_view> value = request.headers.find("Host");
  if (!value || any_host_) return true;
  const std::optional<HostPort> parsed = parse_host(*value);
  if (!parsed) return false;
  const std::string_view host = without_dot(parsed->host);
  return std::ranges::find(own_names, host) != own_names.end() ||
         std::ranges::find(hosts_, host) != hosts_.end();
}

bool Access::given(std::string_view text) const {
  const std::optional<Origin> origin = parse_origin(text);
  return origin && std::ranges::find(origins_, text_of(*origin)) != origins_.end();
}

bool Access::origin_allowed(const HttpRequest& request) const {
  if (const auto origin = request.headers.find("Origin")) {
    const std::optional<Origin> parsed = parse_origin(*origin);  // "null" is none
    return parsed && (same_origin(request, *parsed) || given(*origin));
  }
  return !same_name(request.headers.get("Sec-Fetch-Site"), "cross-site") || follows_link(request);
}

void Access::add_cors(const HttpRequest& request, Headers& headers) const {
  const std::optional<std::string_view> origin = request.headers.find("Origin");
  if (!origins_.empty())
    headers.add("Vary", "Origin");  // so that no cache gives one origin's answer to another
  if (!origin || !given(*origin)) return;
  headers.set("Access-Control-Allow-Origin", std::string(*origin));
  headers.set("Access-Control-Expose-Headers", "Retry-After, X-Request-Id");
}

std::optional<HttpResponse> Access::preflight(const HttpRequest& request) const {
  const bool asks = request.method == "OPTIONS" && request.headers.find("Access-Control-Request-Method");
  const std::optional<std::string_view> origin = request.headers.find("Origin");
  if (!asks || !origin || !given(*origin)) return std::nullopt;
  HttpResponse response{.status = 204};
  add_cors(request, response.headers);
  response.headers.set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE");
  response.headers.set("Access-Control-Allow-Headers",
                       "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-API-Key");
  response.headers.set("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace pom::net
