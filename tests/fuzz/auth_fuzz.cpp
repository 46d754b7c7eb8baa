// Fuzzes what headers say: keys, hosts, origins, ids of events, proxies; and base64 and escapes of addresses.
// Each line of the input is the value of a header. No text opens what it should not, and what is decoded
// encodes to the same.
#include "tests/fuzz/fuzz.h"
#include <array>
#include <cstdint>

#include "pom/net/auth.h"
#include "pom/net/base64.h"
#include "pom/net/forwarded.h"
#include "pom/net/sse.h"
#include "pom/net/url.h"

namespace {

using namespace pom::net;

void check_texts(std::string_view text) {
  if (const auto bytes = base64_decode(text))
    fuzz::require(base64_encode(*bytes) == text, "base64 comes back");
  fuzz::require(base64_decode(base64_encode(text)) == text, "any bytes come back");
  if (const auto plain = percent_decoded(text)) {
    fuzz::require(plain->find('\0') == std::string::npos, "no zero byte");
    fuzz::require(percent_decoded(percent_encoded(*plain)) == plain, "escapes come back");
  }
  if (const auto query = parse_query(text)) {
    std::string again;
    for (const auto& [name, value] : *query)
      again += percent_encoded(name) + "=" + percent_encoded(value) + "&";
    fuzz::require(parse_query(again) == query, "a query comes back");
  }
  if (const auto host = parse_host(text)) {
    const auto again = parse_host(host->port.empty() ? host->host : host->host + ":" + host->port);
    fuzz::require(again && again->host == host->host && again->port == host->port, "a host comes back");
  }
}

void check_key_of(const HttpRequest& request) {
  static const KeySet keys = [] {
    KeySet all;
    all.add("the-right-key");
    return all;
  }();
  Attempts attempts;
  const KeyCheck checked = check_key(request, keys, attempts, {});
  const bool right = checked.verdict == KeyVerdict::right;
  fuzz::require(right == (presented_key(request) == "the-right-key"), "the key alone is right");
}

void check_access(const HttpRequest& request) {
  static const Access access({"pom.example"}, {"https://app.example"});
  const auto host = parse_host(request.headers.get("Host"));
  if (access.host_allowed(request)) {
    fuzz::require(host.has_value(), "a host");
    constexpr std::array<std::string_view, 8> ours = {"localhost",    "localhost.", "127.0.0.1",
                                                      "127.0.0.1.",   "[::1]",      "pom.example",
                                                      "pom.example.", "[::1]."};
    fuzz::require(std::ranges::find(ours, host->host) != ours.end(), "a host of ours");
  }
  Headers cors;
  access.add_cors(request, cors);
  if (cors.find("Access-Control-Allow-Origin"))
    fuzz::require(lowered(request.headers.get("Origin")).starts_with("https://app.example"),
                  "a given origin");
  if (access.origin_allowed(request) && host && !cors.find("Access-Control-Allow-Origin"))
    fuzz::require(lowered(request.headers.get("Origin")).find(host->host) != std::string::npos,
                  "an origin of ours");
}

void check_events(const HttpRequest& request) {
  const auto last = last_event_id(request);
  if (!last) return;
  fuzz::require(std::to_string(*last).size() <= request.headers.get("Last-Event-ID").size(), "a number");
  EventRing ring(4, *last % 8);
  for (int i = 0; i < 6; ++i) ring.add("e", "d");
  if (const auto missed = ring.after(*last)) {
    fuzz::require(missed->size() <= 4 && missed->size() == ring.last_id() - *last, "what came after");
  }
}

void check_proxies(const HttpRequest& request) {
  static const TrustedProxies ours({"10.0.0.0/8", "::1"});
  fuzz::require(ours.client_of(request, "192.0.2.1") == "192.0.2.1", "nobody else is believed");
  const std::string client = ours.client_of(request, "10.0.0.1");
  fuzz::require(TrustedProxies({client}).trusts(client), "an address");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static constexpr const char* names[] = {"Authorization",  "Host",           "Origin",    "Last-Event-ID",
                                          "Sec-Fetch-Site", "Sec-Fetch-Mode", "X-API-Key", "X-Forwarded-For",
                                          "Forwarded"};
  HttpRequest request;
  request.method = "POST";
  std::string_view rest = fuzz::text_of(data, size);
  for (const char* name : names) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    check_texts(rest.substr(0, end));
    request.headers.add(name, std::string(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  check_key_of(request);
  check_access(request);
  check_events(request);
  check_proxies(request);
  return 0;
}
