#include "pom/net/request_head.h"

#include <algorithm>
#include <charconv>

#include "pom/base/error.h"
#include "pom/net/url.h"

namespace pom::net {
namespace {

using Outcome = std::optional<Refusal>;

constexpr std::size_t max_method = 32;

template <class... Parts>
Refusal bad(const Parts&... parts) {
  return {400, "bad_request", pom::detail::concat(parts...)};
}

bool is_token(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::ranges::all_of(text, allowed);
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Whether a list of words such as "keep-alive, TE" has this one.
bool lists(const Headers& headers, std::string_view name, std::string_view word) {
  for (const auto& [own, value] : headers.all()) {
    if (!same_name(own, name)) continue;
    std::string_view rest = value;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      if (same_name(trimmed(rest.substr(0, comma)), word)) return true;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return false;
}

Outcome parse_version(std::string_view text, Framing& framing) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.size() != 8 || !text.starts_with("HTTP/") || !digit(text[5]) || text[6] != '.' || !digit(text[7]))
    return bad("request line: expected METHOD, target and HTTP/1.1");
  if (text != "HTTP/1.1" && text != "HTTP/1.0")
    return Refusal{505, "bad_request", "request line: expected HTTP/1.1 or HTTP/1.0"};
  framing.http11 = text == "HTTP/1.1";
  return {};
}

Outcome parse_request_line(std::string_view line, HttpRequest& request, Framing& framing, std::string& host) {
  const std::size_t first = std::min(line.find(' '), line.size()), last = line.rfind(' ');
  if (first >= last || last == std::string_view::npos)
    return bad("request line: expected METHOD, target and HTTP/1.1");
  if (const Outcome refused = parse_version(line.substr(last + 1), framing)) return refused;
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1);
  if (!is_token(method) || method.size() > max_method)
    return bad("request line: expected a method such as GET");
  std::optional<Target> parsed = parse_target(target);
  if (!parsed) return bad("request line: the target is not well formed");
  if (parsed->path == "*" && method != "OPTIONS") return bad("request line: target *: expected OPTIONS");
  request.method = method;
  request.path = std::move(parsed->path);
  request.query = std::move(parsed->query);
  host = std::move(parsed->host);
  return {};
}

Outcome parse_field(std::string_view line, Headers& headers) {
  const std::size_t colon = line.find(':');
  // A space before the colon is refused too: some take it for part of the name.
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
    return bad("headers: expected \"Name: value\"");
  headers.add(std::string(line.substr(0, colon)), std::string(trimmed(line.substr(colon + 1))));
  return {};
}

// Of these a second one would be a second meaning.
Outcome check_counts(const Headers& headers) {
  for (const char* name : {"Host", "Content-Length", "Transfer-Encoding", "Content-Type", "Authorization",
                           "X-API-Key", "Origin", "Expect"})
    if (headers.count(name) > 1) return bad("headers: ", name, ": expected one, got several");
  return {};
}

Outcome check_host(const Headers& headers, bool http11) {
  const std::optional<std::string_view> host = headers.find("Host");
  if (!host && http11) return bad("headers: Host: expected one, got none");
  if (host && !parse_host(*host)) return bad("headers: Host: expected a name or address and perhaps a port");
  return {};
}

Outcome parse_length(std::string_view text, std::uint64_t& length) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (error != std::errc() || end != text.data() + text.size() || text.size() > 18)
    return bad("headers: Content-Length: expected a number of bytes");
  return {};
}

Outcome read_framing(const Headers& headers, Framing& framing) {
  const auto length = headers.find("Content-Length"), encoding = headers.find("Transfer-Encoding");
  if (length && encoding) return bad("headers: expected Content-Length or Transfer-Encoding, got both");
  if (encoding && !framing.http11) return bad("headers: Transfer-Encoding: expected HTTP/1.1");
  if (encoding && !same_name(*encoding, "chunked"))
    return Refusal{501, "not_supported", "headers: Transfer-Encoding: expected chunked"};
  framing.chunked = encoding.has_value();
  if (length)
    if (const Outcome refused = parse_length(*length, framing.length)) return refused;
  if (const auto expect = headers.find("Expect")) {
    if (!same_name(*expect, "100-continue"))
      return Refusal{417, "not_supported", "headers: Expect: expected 100-continue"};
    framing.expects_continue = framing.http11;
  }
  framing.keep_alive =
      framing.http11 ? !lists(headers, "Connection", "close") : lists(headers, "Connection", "keep-alive");
  return {};
}

}  // namespace

Outcome HeadScan::look_at(char c) {
  if (after_return_ && c != '\n') return bad("head: a carriage return without its line feed");
  if (!after_return_ && c == '\n') return bad("head: a line feed without its carriage return");
  if ((static_cast<unsigned char>(c) < 0x20 && c != '\r' && c != '\n' && c != '\t') || c == 0x7f)
    return bad("head: a control character");
  if (line_is_empty_ && (c == ' ' || c == '\t'))
    return begun_ ? bad("headers: a line that goes on in the next one") : bad("head: begins with a space");
  return {};
}

Outcome HeadScan::look(std::string_view bytes, std::size_t most) {
  for (; seen_ < std::min(bytes.size(), most) && !complete(); ++seen_) {
    const char c = bytes[seen_];
    if (Outcome refused = look_at(c)) return refused;
    if (c == '\n' && line_is_empty_ && begun_) end_ = seen_ + 1;
    if (c == '\n' && !begun_) begin_ = seen_ + 1;  // an empty line before a request is passed over
    if (c == '\n') line_is_empty_ = true;
    if (c != '\r' && c != '\n') begun_ = true, line_is_empty_ = false;
    after_return_ = c == '\r';
  }
  if (!complete() && bytes.size() >= most)
    return Refusal{431, "headers_too_large", pom::detail::concat("head: expected at most ", most, " bytes")};
  return {};
}

Outcome parse_head(std::string_view head, HttpRequest& request, Framing& framing) {
  const std::size_t first = head.find("\r\n");
  std::string host;
  if (Outcome refused = parse_request_line(head.substr(0, first), request, framing, host)) return refused;
  head.remove_prefix(first + 2);
  while (!head.empty()) {
    const std::size_t end = head.find("\r\n");
    if (Outcome refused = parse_field(head.substr(0, end), request.headers)) return refused;
    head.remove_prefix(end + 2);
  }
  if (Outcome refused = check_counts(request.headers)) return refused;
  if (Outcome refused = check_host(request.headers, framing.http11)) return refused;
  if (Outcome refused = read_framing(request.headers, framing)) return refused;
  if (!host.empty()) request.headers.set("Host", host);  // RFC 9112, 3.2.2: the target's counts
  return {};
}

}  // namespace pom::net
