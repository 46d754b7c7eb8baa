// Private to the room: the first lines of an answer, as bytes.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "pom/net/http_message.h"

namespace pom::net {

std::string_view reason_phrase(int status);  // "Not Found"
bool has_no_body(int status);                // 1xx, 204 and 304 never have one

std::string http_date(std::time_t time);  // "Sun, 06 Nov 1994 08:49:37 GMT"

struct ResponseFrame {
  bool http11 = true, close = false, chunked = false;
  std::optional<std::uint64_t> length = {};
};

// Up to and with the empty line. Content-Length, Transfer-Encoding, Connection and Date are made here,
// whatever `headers` say. A name that is no word is left out, and line ends within a value become spaces:
// text of others in a header makes no second one.
std::string response_head(int status, const Headers& headers, const ResponseFrame& frame, std::time_t now);

}  // namespace pom::net
