#include "pom/net/router.h"

#include <algorithm>
#include <optional>
#include <set>

#include "pom/base/error.h"

namespace pom::net {
namespace {

// "/a/b" is a and b; "/" is one empty segment, "/a/" two with the last one empty.
std::vector<std::string_view> segments_of(std::string_view path) {
  std::vector<std::string_view> segments;
  if (path.empty() || path.front() != '/') return segments;
  for (std::size_t begin = 1; begin <= path.size();) {
    const std::size_t slash = std::min(path.find('/', begin), path.size());
    segments.push_back(path.substr(begin, slash - begin));
    begin = slash + 1;
  }
  return segments;
}

std::string allowed(const std::set<std::string>& methods) {
  std::string text;
  for (const std::string& each : methods) text += (text.empty() ? "" : ", ") + each;
  return text;
}

void add_method(std::set<std::string>& methods, const std::string& method) {
  methods.insert(method);
  if (method == "GET") methods.insert("HEAD");
}

}  // namespace

std::string_view Captures::operator[](std::string_view name) const {
  const auto found = std::ranges::find(all_, name, &std::pair<std::string, std::string>::first);
  check(found != all_.end(), "route: the pattern has no {", name, "}");
  return found->second;
}

int Router::Segment::rank() const {
  if (name.empty()) return 0;
  if (rest) return 3;
  return before.empty() && after.empty() ? 2 : 1;
}

bool Router::Segment::fits(std::string_view text) const {
  if (name.empty()) return text == before;
  return text.size() > before.size() + after.size() && text.starts_with(before) && text.ends_with(after);
}

std::string_view Router::Segment::captured(std::string_view text) const {
  return text.substr(before.size(), text.size() - before.size() - after.size());
}

Router::Segment Router::parse_segment(std::string_view part, std::string_view pattern) {
  const auto bad = [&](std::string_view expected) {
    fail("router: pattern \"", pattern, "\": expected ", expected);
  };
  Segment segment;
  const std::size_t open = part.find('{'), close = part.find('}');
  segment.before = part.substr(0, open);
  if (open == std::string_view::npos) {
    if (close != std::string_view::npos) bad("{name}");
    return segment;
  }
  if (close == std::string_view::npos || close < open) bad("{name}");
  std::string_view name = part.substr(open + 1, close - open - 1);
  segment.rest = name.ends_with('*');
  if (segment.rest) name.remove_suffix(1);
  segment.name = name;
  segment.after = part.substr(close + 1);
  if (name.empty() || name.find_first_of("{*") != std::string_view::npos) bad("{name}");
  if (segment.after.find_first_of("{}") != std::string::npos) bad("one name in a segment");
  if (segment.rest && part.size() != name.size() + 3) bad("{name*} for whole segments");
  return segment;
}

Router::Pattern Router::parse(std::string_view text) {
  Pattern pattern;
  for (const std::string_view part : segments_of(text)) {
    check(pattern.empty() || !pattern.back().rest, "router: pattern \"", text,
          "\": expected {name*} at its end");
    pattern.push_back(parse_segment(part, text));
  }
  check(!pattern.empty(), "router: pattern \"", text, "\": expected a slash at its beginning");
  return pattern;
}

// Segments of equal rank with other literals never fit the same text, but for those with names.
std::string Router::shape(const Pattern& pattern) {
  std::string text;
  for (const Segment& each : pattern)
    text += "/" + each.before + (each.name.empty() ? "" : each.rest ? "{*}" : "{}") + each.after;
  return text;
}

bool Router::fits(const Pattern& pattern, std::string_view path, Captures* captures) {
  const std::vector<std::string_view> parts = segments_of(path);
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const Segment& own = pattern[i];
    if (i >= parts.size()) return false;
    if (own.rest) {
      const std::string_view rest(parts[i].data(), static_cast<std::size_t>(path.end() - parts[i].begin()));
      if (captures) captures->add(own.name, std::string(rest));
      return !rest.empty();
    }
    if (!own.fits(parts[i])) return false;
    if (captures && !own.name.empty()) captures->add(own.name, std::string(own.captured(parts[i])));
  }
  return parts.size() == pattern.size();
}

bool Router::narrower(const Pattern& a, const Pattern& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i].rank() != b[i].rank()) return a[i].rank() < b[i].rank();
    // Of two that both fit, the one with more letters: "{id}.tar.gz" before "{id}.gz".
    const std::size_t own = a[i].before.size() + a[i].after.size(),
                      other = b[i].before.size() + b[i].after.size();
    if (own != other) return own > other;
  }
  return false;
}

Router::Router(std::vector<Route> routes, Error error)
    : routes_(std::move(routes)), error_(std::move(error)) {
  check(static_cast<bool>(error_), "router: expected a function for errors, got none");
  std::set<std::pair<std::string, std::string>> seen;
  for (const Route& route : routes_) {
    check(static_cast<bool>(route.handler), "router: ", route.method, " ", route.pattern,
          ": expected a handler");
    patterns_.push_back(parse(route.pattern));
    check(seen.emplace(route.method, shape(patterns_.back())).second, "router: ", route.method, " ",
          route.pattern, ": expected one route for these paths, got two");
  }
}

std::vector<std::size_t> Router::fitting(std::string_view path) const {
  std::vector<std::size_t> best;
  for (std::size_t i = 0; i < patterns_.size(); ++i) {
    if (!fits(patterns_[i], path, nullptr)) continue;
    if (!best.empty() && narrower(patterns_[best.front()], patterns_[i])) continue;
    if (!best.empty() && narrower(patterns_[i], patterns_[best.front()])) best.clear();
    best.push_back(i);
  }
  return best;
}

Router::Match Router::match(std::string_view method, std::string_view path) const {
  Match match;
  std::set<std::string> methods;
  if (path == "*") {
    for (const Route& each : routes_) add_method(methods, each.method);
    match.status = method == "OPTIONS" ? 204 : 404;
  }
  std::optional<std::size_t> chosen;
  for (const std::size_t i : fitting(path)) {
    const Route& route = routes_[i];
    add_method(methods, route.method);
    match.route = match.route ? match.route : &route;
    const bool own = route.method == method;
    if (own || (method == "HEAD" && route.method == "GET" && !chosen)) chosen = i;
  }
  if (methods.empty()) return match;
  methods.insert("OPTIONS");
  match.allow = allowed(methods);
  if (chosen) {
    match.status = 200;
    match.route = &routes_[*chosen];
    fits(patterns_[*chosen], path, &match.captures);
  } else if (path != "*") {
    match.status = method == "OPTIONS" ? 204 : 405;
  }
  return match;
}

void Router::handle(std::shared_ptr<Exchange> exchange) const {
  const Match found = match(exchange->request().method, exchange->request().path);
  if (found.status == 200) return found.route->handler(std::move(exchange), found.captures);
  HttpResponse response{.status = 204};
  if (found.status == 404) response = error_(404, "not_found", "there is nothing at this path");
  if (found.status == 405)
    response = error_(405, "method_not_allowed", "expected one of the methods " + found.allow);
  if (!found.allow.empty()) response.headers.set("Allow", found.allow);
  exchange->answer(std::move(response));
}

std::string_view Router::pattern_of(const HttpRequest& request) const {
  const Match found = match(request.method, request.path);
  return found.route ? std::string_view(found.route->pattern) : "other";
}

}  // namespace pom::net
