#include "pom/net/response_head.h"

#include <algorithm>
#include <cstdio>

namespace pom::net {
namespace {

bool is_ours(std::string_view name) {
  const auto same = [&](std::string_view own) { return same_name(name, own); };
  constexpr std::string_view own[] = {"Content-Length", "Transfer-Encoding", "Connection", "Date"};
  return std::ranges::any_of(own, same);
}

bool is_field_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  };
  return !name.empty() && std::ranges::all_of(name, allowed);
}

void append_field(std::string& text, std::string_view name, std::string_view value) {
  text += name;
  text += ": ";
  for (const char c : value)
    text += (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f ? ' ' : c;
  text += "\r\n";
}

}  // namespace

std::string_view reason_phrase(int status) {
  struct Phrase {
    int status;
    std::string_view text;
  };
  static constexpr Phrase phrases[] = {
      {100, "Continue"},
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {206, "Partial Content"},
      {301, "Moved Permanently"},
      {302, "Found"},
      {303, "See Other"},
      {304, "Not Modified"},
      {307, "Temporary Redirect"},
      {308, "Permanent Redirect"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {406, "Not Acceptable"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {410, "Gone"},
      {411, "Length Required"},
      {412, "Precondition Failed"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {416, "Range Not Satisfiable"},
      {417, "Expectation Failed"},
      {422, "Unprocessable Content"},
      {425, "Too Early"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {502, "Bad Gateway"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
      {507, "Insufficient Storage"},
  };
  const auto found = std::ranges::find(phrases, status, &Phrase::status);
  return found == std::end(phrases) ? "Unknown" : found->text;
}

bool has_no_body(int status) {
  return status < 200 || status == 204 || status == 304;
}

std::string http_date(std::time_t time) {
  // strftime would ask the locale for the names.
  static constexpr const char* days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                           "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[64];
  std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[parts.tm_wday], parts.tm_mday,
                months[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
  return text;
}

std::string response_head(int status, const Headers& headers, const ResponseFrame& frame, std::time_t now) {
  std::string text = frame.http11 ? "HTTP/1.1 " : "HTTP/1.0 ";
  text += std::to_string(status);
  text += ' ';
  text += reason_phrase(status);
  text += "\r\n";
  append_field(text, "Date", http_date(now));
  for (const auto& [name, value] : headers.all())
    if (is_field_name(name) && !is_ours(name)) append_field(text, name, value);
  if (frame.length) append_field(text, "Content-Length", std::to_string(*frame.length));
  if (frame.chunked) append_field(text, "Transfer-Encoding", "chunked");
  if (frame.close)
    append_field(text, "Connection", "close");
  else if (!frame.http11)
    append_field(text, "Connection", "keep-alive");
  text += "\r\n";
  return text;
}

}  // namespace pom::net
