// Tests of the table of routes.
#include "pom/net/router.h"

#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::net {
namespace {

HttpResponse error_answer(int status, std::string_view code, std::string_view) {
  return {status, {}, std::string(code)};
}

Route route(std::string method, std::string pattern) {
  return {std::move(method), std::move(pattern), "", [](std::shared_ptr<Exchange>, const Captures&) {}};
}

Router make_router(std::vector<std::pair<std::string, std::string>> table) {
  std::vector<Route> routes;
  for (auto& [method, pattern] : table) routes.push_back(route(std::move(method), std::move(pattern)));
  return Router(std::move(routes), error_answer);
}

// "200 /jobs/{id} id=7", with the methods allowed for 405 and 204.
std::string text_of(const Router& router, std::string_view method, std::string_view path) {
  const Router::Match match = router.match(method, path);
  std::string text = std::to_string(match.status);
  if (match.status == 200)
    text += " " + match.route->pattern;
  else if (!match.allow.empty())
    text += " " + match.allow;
  for (const auto& [name, value] : match.captures.all()) text += " " + name + "=" + value;
  return text;
}

const Router& example() {
  static const Router router = make_router({{"GET", "/"},
                                            {"GET", "/jobs"},
                                            {"POST", "/jobs"},
                                            {"GET", "/jobs/{id}"},
                                            {"DELETE", "/jobs/{id}"},
                                            {"GET", "/jobs/all"},
                                            {"GET", "/jobs/{id}/events"},
                                            {"GET", "/pictures/{id}.png"},
                                            {"GET", "/pictures/{id}.tar.gz"},
                                            {"GET", "/pictures/{id}.gz"},
                                            {"GET", "/assets/{file*}"},
                                            {"GET", "/assets/app.js"},
                                            {"HEAD", "/jobs/{id}/events"},
                                            {"OPTIONS", "/special"}});
  return router;
}

TEST(Router, FindsTheNarrowestPattern) {
  const Router& router = example();
  EXPECT_EQ(text_of(router, "GET", "/"), "200 /");
  EXPECT_EQ(text_of(router, "POST", "/jobs"), "200 /jobs");
  EXPECT_EQ(text_of(router, "GET", "/jobs/7"), "200 /jobs/{id} id=7");
  EXPECT_EQ(text_of(router, "GET", "/jobs/all"), "200 /jobs/all");
  EXPECT_EQ(text_of(router, "GET", "/jobs/a b"), "200 /jobs/{id} id=a b");
  EXPECT_EQ(text_of(router, "GET", "/jobs/7/events"), "200 /jobs/{id}/events id=7");
  EXPECT_EQ(text_of(router, "GET", "/pictures/7.png"), "200 /pictures/{id}.png id=7");
  EXPECT_EQ(text_of(router, "GET", "/pictures/7.tar.gz"), "200 /pictures/{id}.tar.gz id=7");
  EXPECT_EQ(text_of(router, "GET", "/pictures/7.gz"), "200 /pictures/{id}.gz id=7");
  EXPECT_EQ(text_of(router, "GET", "/assets/app.js"), "200 /assets/app.js");
  EXPECT_EQ(text_of(router, "GET", "/assets/a/b.css"), "200 /assets/{file*} file=a/b.css");
}

TEST(Router, WhatIsNotThere) {
  const Router& router = example();
  for (const char* path :
       {"", "/x", "/jobs/", "//", "/jobs//events", "/jobs/7/", "/jobs/7/events/", "/Jobs", "jobs",
        "/pictures/.png", "/pictures/7", "/pictures/7/8.png", "/assets", "/assets/"})
    EXPECT_EQ(text_of(router, "GET", path), "404") << path;
}

TEST(Router, OtherMethods) {
  const Router& router = example();
  EXPECT_EQ(text_of(router, "PUT", "/jobs"), "405 GET, HEAD, OPTIONS, POST");
  EXPECT_EQ(text_of(router, "POST", "/jobs/7"), "405 DELETE, GET, HEAD, OPTIONS");
  EXPECT_EQ(text_of(router, "DELETE", "/jobs/all"), "405 GET, HEAD, OPTIONS");
  EXPECT_EQ(text_of(router, "get", "/jobs"), "405 GET, HEAD, OPTIONS, POST");
  EXPECT_EQ(text_of(router, "HEAD", "/jobs"), "200 /jobs");
  EXPECT_EQ(router.match("HEAD", "/jobs").route->method, "GET");
  EXPECT_EQ(router.match("HEAD", "/jobs/7/events").route->method, "HEAD");
  EXPECT_EQ(text_of(router, "OPTIONS", "/jobs"), "204 GET, HEAD, OPTIONS, POST");
  EXPECT_EQ(text_of(router, "OPTIONS", "/special"), "200 /special");
  EXPECT_EQ(text_of(router, "OPTIONS", "/x"), "404");
  EXPECT_EQ(text_of(router, "OPTIONS", "*"), "204 DELETE, GET, HEAD, OPTIONS, POST");
}

TEST(Router, PatternsThatAreNone) {
  const auto refusal = [](std::vector<std::pair<std::string, std::string>> table) -> std::string {
    try {
      make_router(std::move(table));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({{"GET", "jobs"}}), "router: pattern \"jobs\": expected a slash at its beginning");
  EXPECT_EQ(refusal({{"GET", "/{file*}/x"}}), "router: pattern \"/{file*}/x\": expected {name*} at its end");
  EXPECT_EQ(refusal({{"GET", "/a{file*}"}}),
            "router: pattern \"/a{file*}\": expected {name*} for whole segments");
  EXPECT_EQ(refusal({{"GET", "/{a}{b}"}}), "router: pattern \"/{a}{b}\": expected one name in a segment");
  for (const char* pattern : {"/{", "/}", "/{}", "/{*}", "/a}b{c", "/{a", "/{{a}", "/{a*b}"})
    EXPECT_EQ(refusal({{"GET", pattern}}),
              "router: pattern \"" + std::string(pattern) + "\": expected {name}");
  EXPECT_EQ(refusal({{"GET", "/a/{b}"}, {"GET", "/a/{c}"}}),
            "router: GET /a/{c}: expected one route for these paths, got two");
  EXPECT_EQ(refusal({{"GET", "/a/{b}"}, {"POST", "/a/{c}"}}), "");
  EXPECT_EQ(refusal({{"GET", "/a/{b}.x"}, {"GET", "/a/{b}.y"}}), "");
}

TEST(Router, ShowsPatternsInPlaceOfPaths) {
  HttpRequest request;
  const auto shown = [&](const char* method, const char* path) {
    request.method = method;
    request.path = path;
    return example().pattern_of(request);
  };
  EXPECT_EQ(shown("GET", "/jobs/secret"), "/jobs/{id}");
  EXPECT_EQ(shown("PATCH", "/jobs/secret"), "/jobs/{id}");
  EXPECT_EQ(shown("GET", "/secret"), "other");
  EXPECT_EQ(shown("OPTIONS", "*"), "other");
}

TEST(Captures, AnUnknownNameIsOurMistake) {
  Captures captures;
  captures.add("id", "7");
  EXPECT_EQ(captures["id"], "7");
  EXPECT_THROW(captures["job"], Error);
}

// An exchange that keeps its answer.
class Kept final : public Exchange {
 public:
  Kept(const char* method, const char* path) { request_.method = method, request_.path = path; }
  const HttpRequest& request() const override { return request_; }
  void answer(HttpResponse response) override { given = std::move(response); }
  std::shared_ptr<BodyStream> stream(int, Headers) override { return nullptr; }
  void on_gone(std::function<void()>) override {}
  bool gone() const override { return false; }
  std::optional<HttpResponse> given;

 private:
  HttpRequest request_;
};

TEST(Router, Handles) {
  std::string seen;
  Router router(
      {{"GET", "/a/{b}", "", [&](std::shared_ptr<Exchange>, const Captures& all) { seen = all["b"]; }}},
      error_answer);
  const auto answer = [&](const char* method, const char* path) {
    const auto exchange = std::make_shared<Kept>(method, path);
    router.handle(exchange);
    return exchange->given;
  };
  EXPECT_FALSE(answer("GET", "/a/c"));
  EXPECT_EQ(seen, "c");
  EXPECT_EQ(answer("GET", "/x")->status, 404);
  EXPECT_EQ(answer("GET", "/x")->body, "not_found");
  EXPECT_EQ(answer("POST", "/a/c")->status, 405);
  EXPECT_EQ(answer("POST", "/a/c")->headers.get("Allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(answer("OPTIONS", "/a/c")->status, 204);
  EXPECT_EQ(answer("OPTIONS", "/a/c")->headers.get("Allow"), "GET, HEAD, OPTIONS");
}

}  // namespace
}  // namespace pom::net
