#include "pom/net/url.h"

#include <algorithm>
#include <charconv>

#include "pom/io/json_header.h"
#include "pom/net/http_message.h"

namespace pom::net {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_utf8(std::string_view text) {
  return io::detail::find_invalid_utf8(text) == text.size();
}

// The text before the first `mark`, and what is behind it; nothing where there is none.
std::pair<std::string_view, std::string_view> split(std::string_view text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

std::optional<std::string> form_decoded(std::string_view text) {
  std::string spaced(text);
  std::ranges::replace(spaced, '+', ' ');
  return percent_decoded(spaced);
}

bool is_port(std::string_view text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value <= 65535 && text.size() <= 5;
}

bool is_ipv6_literal(std::string_view text) {
  const auto allowed = [](char c) { return hex_value(c) >= 0 || c == ':' || c == '.'; };
  return text.size() >= 4 && text.front() == '[' && text.back() == ']' &&
         std::ranges::all_of(text.substr(1, text.size() - 2), allowed);
}

bool is_host_name(std::string_view text) {
  const auto allowed = [](char c) { return is_letter_or_digit(c) || c == '-' || c == '.' || c == '_'; };
  return !text.empty() && text.size() <= 255 && std::ranges::all_of(text, allowed);
}

}  // namespace

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\0') return std::nullopt;
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_value(text[i + 2]) : -1;
    if (low < 0 || (high | low) == 0) return std::nullopt;
    result += static_cast<char>(high << 4 | low);
    i += 2;
  }
  if (!is_utf8(result)) return std::nullopt;
  return result;
}

std::string percent_encoded(std::string_view text) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  std::string result;
  for (const char c : text) {
    if (is_letter_or_digit(c) || std::string_view("-._~").find(c) != std::string_view::npos) {
      result += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      result += {'%', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return result;
}

std::optional<Query> parse_query(std::string_view text) {
  Query query;
  while (!text.empty()) {
    const auto [pair, rest] = split(text, '&');
    text = rest;
    if (pair.empty()) continue;
    const auto [name, value] = split(pair, '=');
    std::optional<std::string> plain_name = form_decoded(name), plain_value = form_decoded(value);
    if (!plain_name || !plain_value) return std::nullopt;
    query.emplace_back(std::move(*plain_name), std::move(*plain_value));
  }
  return query;
}

bool plain_path(std::string_view path) {
  if (path.empty() || path.front() != '/') return false;
  for (const char c : path)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  std::size_t begin = 1;
  for (std::size_t i = 1; i <= path.size(); ++i) {
    if (i < path.size() && path[i] != '/' && path[i] != '\\') continue;
    const std::string_view segment = path.substr(begin, i - begin);
    if (segment == "." || segment == "..") return false;
    begin = i + 1;
  }
  return true;
}

std::optional<HostPort> parse_host(std::string_view text) {
  // The colon of a port comes after the bracket of an IPv6 address, which has colons of its own.
  const std::size_t bracket = text.rfind(']');
  const std::size_t colon = text.find(':', bracket == std::string_view::npos ? 0 : bracket);
  const std::string_view host = text.substr(0, colon);
  const std::string_view port = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (!is_host_name(host) && !is_ipv6_literal(host)) return std::nullopt;
  if (!port.empty() && !is_port(port)) return std::nullopt;
  return HostPort{lowered(host), std::string(port)};
}

std::optional<Target> parse_target(std::string_view text) {
  Target target;
  if (text == "*") {
    target.path = "*";
    return target;
  }
  const auto printable = [](char c) { return c > 0x20 && c < 0x7f && c != '#'; };
  if (!std::ranges::all_of(text, printable)) return std::nullopt;
  const std::size_t scheme = text.find("://");
  if (!text.empty() && text.front() != '/' && scheme != std::string_view::npos) {
    const std::string_view name = text.substr(0, scheme);
    if (!same_name(name, "http") && !same_name(name, "https")) return std::nullopt;
    text.remove_prefix(scheme + 3);
    const std::size_t end = std::min(text.find_first_of("/?"), text.size());
    target.host = text.substr(0, end);
    if (!parse_host(target.host)) return std::nullopt;
    text.remove_prefix(end);
  }
  const auto [path, query] = split(text, '?');
  std::optional<std::string> plain = path.empty() && !target.host.empty() ? "/" : percent_decoded(path);
  std::optional<Query> pairs = parse_query(query);
  if (!plain || !plain_path(*plain) || !pairs) return std::nullopt;
  target.path = std::move(*plain);
  target.query = std::move(*pairs);
  return target;
}

}  // namespace pom::net
