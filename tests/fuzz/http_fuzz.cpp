// Fuzzes the reader of requests and the router behind it. However the bytes are cut, the outcome is the same;
// what is accepted keeps the limits and has a path that leads nowhere else. Where Boost is installed its own
// parser is the referee: what ours accepts, it accepts too, with the same method, target, headers, body and
// end.
#include "tests/fuzz/fuzz.h"
#include <cstdint>
#include <optional>
#include <utility>
#if __has_include(<boost/beast/http/parser.hpp>)
#define BOOST_ASIO_DISABLE_CO_AWAIT 1  // clang 14 and the library of GCC 12 do not agree on it
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#define POM_HAS_BEAST 1
#endif

#include "pom/net/request_reader.h"
#include "pom/net/response_head.h"
#include "pom/net/router.h"
#include "pom/net/url.h"

namespace {

using namespace pom::net;
using State = RequestReader::State;

constexpr std::size_t most_head = 1000;
constexpr std::uint64_t most_body = 100;

struct Outcome {
  State state = State::head;
  int status = 0;
  std::size_t taken = 0;
  HttpRequest request;
  Framing framing;
};

Outcome read(std::string_view bytes, std::size_t piece) {
  RequestReader reader(most_head);
  Outcome outcome;
  for (std::size_t come = 0; come < bytes.size() && reader.state() != State::done;) {
    come = std::min(bytes.size(), come + piece);
    while (reader.state() != State::done && reader.state() != State::refused) {
      const std::size_t taken = reader.take(bytes.substr(outcome.taken, come - outcome.taken));
      outcome.taken += taken;
      fuzz::require(outcome.taken <= come, "takes what is there");
      if (reader.state() == State::head_done)
        reader.begin_body(most_body);
      else if (taken == 0)
        break;
    }
    if (reader.state() == State::refused) break;
    fuzz::require(reader.request().body.size() <= most_body, "no more than the limit");
  }
  outcome.state = reader.state();
  outcome.status = reader.state() == State::refused ? reader.refusal().status : 0;
  fuzz::require((outcome.state == State::refused) == (outcome.status >= 400), "refused with a status");
  outcome.framing = reader.framing();
  outcome.request = std::move(reader.request());
  return outcome;
}

void check_cuts(std::string_view bytes, const Outcome& whole) {
  for (const std::size_t piece : {1u, 2u, 5u}) {
    const Outcome cut = read(bytes, piece);
    fuzz::require(cut.state == whole.state && cut.status == whole.status, "the same outcome in pieces");
    if (whole.state != State::done) continue;
    fuzz::require(cut.taken == whole.taken && cut.request.body == whole.request.body &&
                      cut.request.headers.all() == whole.request.headers.all() &&
                      cut.request.path == whole.request.path && cut.request.query == whole.request.query,
                  "the same request in pieces");
  }
}

const Router& router() {
  static const Router all = [] {
    std::vector<Route> routes;
    for (const char* pattern :
         {"/", "/jobs", "/jobs/{id}", "/jobs/{id}/events", "/pictures/{id}.png", "/assets/{file*}"})
      routes.push_back({"GET", pattern, "", [](std::shared_ptr<Exchange>, const Captures&) {}});
    return Router(std::move(routes), [](int, std::string_view, std::string_view) { return HttpResponse(); });
  }();
  return all;
}

void check_request(const HttpRequest& request) {
  fuzz::require(request.path == "*" || plain_path(request.path), "a path without a way up");
  fuzz::require(request.path == "*" || parse_target(percent_encoded(request.path.substr(1)).insert(0, "/")),
                "a path that can be written again");
  const Router::Match match = router().match(request.method, request.path);
  for (const auto& [name, value] : match.captures.all())
    fuzz::require(!value.empty(), "captures have something");
  fuzz::require((match.status == 404) == match.allow.empty(), "what is there allows something");
  // What a careless handler gives back makes no line of its own.
  Headers echo;
  for (const auto& [name, value] : request.query) echo.add(name, value);
  echo.add("X-Path", request.path);
  const std::string head = response_head(200, echo, {}, 0);
  fuzz::require(head.find("\r\n\r\n") == head.size() - 4, "one head");
  fuzz::require(static_cast<std::size_t>(std::ranges::count(head, '\n')) <= echo.all().size() + 3,
                "no more lines");
}

#ifdef POM_HAS_BEAST
// True where the referee cannot tell: in extensions of chunks and in trailers, which we pass over, it looks
// for what it would in headers, and it wants lists of words where we look for one word.
bool beyond_referee(const boost::beast::error_code& error, bool in_chunks) {
  using Error = boost::beast::http::error;
  return error == Error::bad_value ||
         (in_chunks && error && error != Error::bad_chunk && error != Error::need_more);
}

void ask_referee(std::string_view bytes, const Outcome& ours) {
  namespace http = boost::beast::http;
  while (bytes.starts_with("\r\n")) bytes.remove_prefix(2);
  http::request_parser<http::string_body> parser;
  parser.eager(true);
  parser.header_limit(1 << 20);
  parser.body_limit(std::uint64_t{1} << 40);
  boost::beast::error_code error;
  std::size_t taken = 0;
  while (!parser.is_done() && taken < bytes.size()) {
    const std::size_t more = parser.put(boost::asio::buffer(bytes.substr(taken)), error);
    taken += more;
    if (error || more == 0) break;
  }
  if (beyond_referee(error, ours.framing.chunked && parser.is_header_done())) return;
  fuzz::require(!error && parser.is_done(), "the referee accepts it");
  fuzz::require(parser.get().method_string() == ours.request.method, "the same method");
  fuzz::require(parser.get().body() == ours.request.body, "the same body");
  fuzz::require(parser.chunked() == ours.framing.chunked, "the same framing");
  if (ours.framing.chunked) return;  // trailers are among its headers
  const std::optional<Target> target = parse_target(std::string(parser.get().target()));
  fuzz::require(target && target->path == ours.request.path, "the same target");
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& field : parser.get()) ++count;
  const bool may_add_host = !target->host.empty() && parser.get().find("Host") == parser.get().end();
  fuzz::require(count + may_add_host == ours.request.headers.all().size(), "as many headers");
  for (const auto& own : ours.request.headers.all()) {
    if (same_name(own.first, "Host") && !target->host.empty()) continue;  // the target's
    const auto [first, last] = parser.get().equal_range(own.first);
    const auto equal = [&](const auto& field) { return field.value() == own.second; };
    fuzz::require(std::any_of(first, last, equal), "the same headers");
  }
}
#else
void ask_referee(std::string_view, const Outcome&) {}
#endif

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest = fuzz::text_of(data, size);
  for (int requests = 0; requests < 4 && !rest.empty(); ++requests) {
    const Outcome outcome = read(rest, rest.size());
    check_cuts(rest, outcome);
    if (outcome.state != State::done) break;
    check_request(outcome.request);
    ask_referee(rest.substr(0, outcome.taken), outcome);
    rest.remove_prefix(outcome.taken);
  }
  return 0;
}
