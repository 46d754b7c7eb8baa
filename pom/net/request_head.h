// Private to the room: the head of a request, read so strictly that no two servers can read it differently.
// Where RFC 9112 lets a server be lenient (bare line feeds, folded lines, several equal lengths) this one is
// not: such requests are not sent by browsers and clients, but by those who look for a gap between a proxy
// and the server behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "pom/net/http_message.h"

namespace pom::net {

// What is said of a request that is not taken; the connection closes after it.
struct Refusal {
  int status = 400;
  std::string code = "bad_request";
  std::string message;
};

// Looks for the end of a head in a buffer that grows, at each byte once.
class HeadScan {
 public:
  // `bytes` is all there is of the head so far. An error is told as soon as its byte is there.
  std::optional<Refusal> look(std::string_view bytes, std::size_t most);
  bool begun() const { return begun_; }  // other than by empty lines
  bool complete() const { return end_ > 0; }
  std::size_t size() const { return end_; }  // with the empty line
  // Without the empty lines before and after it; complete() only.
  std::string_view head(std::string_view bytes) const { return bytes.substr(begin_, end_ - begin_ - 2); }

 private:
  std::optional<Refusal> look_at(char c);

  std::size_t seen_ = 0, begin_ = 0, end_ = 0;
  bool after_return_ = false, line_is_empty_ = true, begun_ = false;
};

// How the body comes and what becomes of the connection after it.
struct Framing {
  bool http11 = true, keep_alive = true;
  bool chunked = false, expects_continue = false;
  std::uint64_t length = 0;  // 0 where it is chunked

  bool has_body() const { return chunked || length > 0; }
};

// Sets method, path, query and headers. The head is one that HeadScan found.
std::optional<Refusal> parse_head(std::string_view head, HttpRequest& request, Framing& framing);

}  // namespace pom::net
