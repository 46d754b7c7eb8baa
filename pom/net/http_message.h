// A request as a handler sees it and the answer it gives, without a socket in sight.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pom::net {

bool same_name(std::string_view a, std::string_view b);  // letter case of ASCII aside
std::string lowered(std::string_view text);              // of ASCII likewise

// Names are compared without regard to case; order is kept.
class Headers {
 public:
  Headers() = default;
  Headers(std::initializer_list<std::pair<std::string, std::string>> all) : all_(all) {}

  void set(std::string_view name, std::string value);  // in place of those of that name
  void add(std::string name, std::string value);
  std::optional<std::string_view> find(std::string_view name) const;  // the first
  std::string_view get(std::string_view name, std::string_view otherwise = {}) const;
  std::size_t count(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
};

struct HttpRequest {
  std::string method;                                      // "GET"
  std::string path;                                        // decoded, without the query: "/pom/v1/jobs"
  std::vector<std::pair<std::string, std::string>> query;  // decoded
  Headers headers;  // a target that names its host ("http://host/path") has set Host
  std::string body;
  std::string client;        // address, or "unix"
  std::uint64_t number = 0;  // of this server's requests, from 1

  std::optional<std::string_view> query_value(std::string_view name) const;  // the first
};

// Bytes that several answers share.
using Bytes = std::shared_ptr<const std::string>;

struct HttpResponse {
  int status = 200;
  Headers headers = {};  // Content-Length and Connection are the server's; "Connection: close" is obeyed
  std::string body = {};
  Bytes shared = {};                   // in place of body
  std::chrono::milliseconds delay{0};  // it is held back for so long: what makes guessing of keys slow
};

}  // namespace pom::net
