// Parts of addresses, as strictly as a server may be: what is not well formed is refused, not mended.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pom::net {

using Query = std::vector<std::pair<std::string, std::string>>;

// "%41" to "A". Nothing where an escape is broken or gives a zero byte, or where the result is not UTF-8.
std::optional<std::string> percent_decoded(std::string_view text);
std::string percent_encoded(std::string_view text);  // all but letters, digits and "-._~"

// "a=1&b=x+y": pairs in their order, plus signs as spaces. An empty pair ("a=1&&b") is passed over.
std::optional<Query> parse_query(std::string_view text);

// A decoded path that begins with a slash and has neither "." nor ".." among its segments, nor control
// characters. A backslash parts segments too: somebody's file system may take it so.
bool plain_path(std::string_view path);

// "name", "name:80", "1.2.3.4:80" or "[::1]:80", as in the header Host.
struct HostPort {
  std::string host;  // in lower case, IPv6 in its brackets
  std::string port;  // digits, or empty
};
std::optional<HostPort> parse_host(std::string_view text);

// What follows the method in a request: "/path?query", "http://host/path?query", "*".
struct Target {
  std::string path;  // decoded; "*" for that
  Query query;
  std::string host;  // where the target names it, as parse_host takes it
};
std::optional<Target> parse_target(std::string_view text);

}  // namespace pom::net
