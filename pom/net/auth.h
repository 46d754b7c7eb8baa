// Who may ask: keys, and for browsers the names and origins that are ours. Functions of a request alone,
// which a server looks at before it reads a body (ServerOptions::refuse).
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/io/sha256.h"
#include "pom/net/http_message.h"

namespace pom::net {

// ---- keys ----

// Keys by their SHA-256: the time of a comparison says nothing of the keys, and memory does not hold them.
class KeySet {
 public:
  static constexpr std::size_t min_key = 8, max_key = 512, max_keys = 1024;

  // One key a line, and at least one; spaces around it, empty lines and lines that begin with # do not count.
  void add_file(const std::filesystem::path& path);
  // Of an environment variable: keys with commas between them. False where it is not set, or empty.
  bool add_environment(const char* name);
  void add(std::string_view key);  // 8 to 512 printable characters of ASCII

  bool empty() const { return digests_.empty(); }
  std::size_t size() const { return digests_.size(); }
  // Which one it is, counted from 0. Always compares with all of them, to the last byte.
  std::optional<std::size_t> find(std::string_view key) const;

 private:
  std::vector<io::Sha256::Digest> digests_;
};

// "X-API-Key: KEY", else "Authorization: Bearer KEY" or the password of "Authorization: Basic". Nothing where
// none is given, or an empty one, as clients without a key send.
std::optional<std::string> presented_key(const HttpRequest& request);

// Wrong keys of an address: ten at once, and ten more each minute. Not for two threads at once.
class Attempts {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr double most = 10;
  static constexpr std::size_t max_addresses = 4096;  // then the one that was wrong longest ago is forgotten

  bool allowed(std::string_view address, Time now) const;
  void wrong(std::string_view address, Time now);
  std::size_t addresses() const { return all_.size(); }

 private:
  struct Count {
    double wrong = 0;
    Time since;
  };
  static double count_at(const Count& count, Time now);
  std::map<std::string, Count, std::less<>> all_;
};

enum class KeyVerdict { right, missing, wrong, too_many };  // 200; 401; 401 after a while; 429
struct KeyCheck {
  KeyVerdict verdict = KeyVerdict::missing;
  std::optional<std::size_t> key = {};  // which one, where it is right
};
// Too many wrong ones refuse the right one too: else guessing would go on.
KeyCheck check_key(const HttpRequest& request, const KeySet& keys, Attempts& attempts, Attempts::Time now);

// ---- proxies ----

// Whose request it is: the connection's other end, or, where that is one of these proxies, the last address
// of X-Forwarded-For that is none of them. What is no address there is not believed.
std::string forwarded_client(const HttpRequest& request, const std::vector<std::string>& proxies);

// ---- names and origins ----

// Which names a request may use for this server, and the pages of which origins may send one.
//
// A browser that was led here by a name of somebody else's (DNS rebinding) says that name in Host. A page of
// another origin says so in Origin, or, where it asks for a picture or sends a form, in Sec-Fetch-Site.
class Access {
 public:
  // `hosts`: names besides localhost, 127.0.0.1 and [::1], without ports; "*": any, for servers whose keys
  // are enough. `origins`: "https://example.org", never "*". Throws pom::Error for what is neither.
  Access(const std::vector<std::string>& hosts, const std::vector<std::string>& origins);

  // By Host, whatever its port. A request without one (HTTP/1.0) is no browser's.
  bool host_allowed(const HttpRequest& request) const;
  // A page of ours or of the given origins, no page at all, or a link that somebody followed: that shows a
  // page and starts nothing.
  bool origin_allowed(const HttpRequest& request) const;

  // What lets a page of a given origin read the answer; nothing for others, and never with credentials.
  void add_cors(const HttpRequest& request, Headers& headers) const;
  // The answer to a browser's question whether such a page may send what it wants to; nothing for other
  // requests.
  std::optional<HttpResponse> preflight(const HttpRequest& request) const;

 private:
  bool given(std::string_view origin) const;
  std::vector<std::string> hosts_, origins_;
  bool any_host_ = false;
};

}  // namespace pom::net
