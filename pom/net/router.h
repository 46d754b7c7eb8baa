// From method and path to a handler, by a table. Where several patterns fit a path, the one that says more in
// its first differing segment wins ("/jobs/all" before "/jobs/{id}" before "/{rest*}"), whatever their order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pom/net/http_server.h"

namespace pom::net {

// What a path had in the places of a pattern's names; never empty.
class Captures {
 public:
  std::string_view operator[](
      std::string_view name) const;  // throws pom::Error where the pattern has no such
  void add(std::string name, std::string value) { all_.emplace_back(std::move(name), std::move(value)); }
  const std::vector<std::pair<std::string, std::string>>& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
};

using RouteHandler = std::function<void(std::shared_ptr<Exchange>, const Captures&)>;

struct Route {
  std::string method;   // "GET", which is for HEAD too where there is no route for that
  std::string pattern;  // "/jobs/{id}", "/pictures/{id}.png"; as the last: "/assets/{file*}", with slashes
  std::string name;     // for people and documents: "cancel a job"
  RouteHandler handler;
};

class Router {
 public:
  using Error = std::function<HttpResponse(int status, std::string_view code, std::string_view message)>;

  // Throws pom::Error for a pattern that is not well formed and for two that fit the same paths. `error`
  // makes the answers 404 and 405.
  Router(std::vector<Route> routes, Error error);

  struct Match {
    int status = 404;              // 200: route is set; 204: OPTIONS, told by the table; 404, 405
    const Route* route = nullptr;  // for 405 and 204 one of those with another method
    Captures captures;
    std::string allow;  // "GET, HEAD, OPTIONS"
  };
  Match match(std::string_view method, std::string_view path) const;

  // Calls the handler, or answers by itself. A Handler, as long as the router lives.
  void handle(std::shared_ptr<Exchange> exchange) const;

  // What logs and metrics show in place of the path: there are few of them, and no client chooses them.
  std::string_view pattern_of(const HttpRequest& request) const;  // "other" where none fits

  const std::vector<Route>& routes() const { return routes_; }

 private:
  struct Segment {
    std::string before, name, after;  // a name with a literal on each side; before alone where name is empty
    bool rest = false;
    // Ranks of what it can fit, the narrowest first.
    int rank() const;
    bool fits(std::string_view text) const;
    std::string_view captured(std::string_view text) const;
  };
  using Pattern = std::vector<Segment>;
  static Segment parse_segment(std::string_view part, std::string_view pattern);
  static Pattern parse(std::string_view pattern);
  static bool fits(const Pattern& pattern, std::string_view path, Captures* captures);
  static bool narrower(const Pattern& a, const Pattern& b);
  static std::string shape(const Pattern& pattern);
  std::vector<std::size_t> fitting(std::string_view path) const;  // the narrowest patterns, all of one shape

  std::vector<Route> routes_;
  std::vector<Pattern> patterns_;
  Error error_;
};

}  // namespace pom::net
