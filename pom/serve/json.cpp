#include "pom/serve/json.h"

#include <cmath>
#include <set>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/serve/errors.h"

namespace pom::serve {
namespace {

constexpr int most_depth = 16;
constexpr std::size_t most_keys = 512;        // of an object: finding one takes as long as there are others
constexpr double exact = 9007199254740992.0;  // 2^53: integers beyond it are not what a client meant

void make_whole(Json& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::floor(number) == number && std::abs(number) < exact) value = static_cast<std::int64_t>(number);
  }
  if (value.is_structured())
    for (Json& inner : value) make_whole(inner);
}

ApiError bad_json(const std::string& why) {
  return {400, "bad_json", "body: expected a JSON object, got " + why};
}

}  // namespace

Json parse_object(std::string_view body) {
  std::vector<std::set<std::string>> keys;
  std::string twice;
  bool deep = false, many = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    deep |= depth > most_depth;
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      if (!keys.back().insert(value.get<std::string>()).second) twice = value.get<std::string>();
      many |= keys.back().size() > most_keys;
    }
    return !deep && !many;
  };
  // The parser takes a byte 0 for the end of its input, and passes over whatever follows.
  if (body.find('\0') != std::string_view::npos) throw bad_json("text with a byte 0: " + shown(body));
  Json json;
  try {
    json = Json::parse(body, watch);
  } catch (const Json::exception&) {
    throw bad_json(body.empty() ? "nothing" : "text that is none: " + shown(body));
  }
  if (deep) throw bad_json(detail::concat("one nested deeper than ", most_depth));
  if (many) throw bad_json(detail::concat("one with more than ", most_keys, " keys"));
  if (!twice.empty())
    throw ApiError(400, "bad_json", "body: expected every key once, got \"" + shown(twice) + "\" twice",
                   shown(twice));
  if (!json.is_object()) throw bad_json(json.type_name());
  make_whole(json);
  return json;
}

Json parse_object(const net::HttpRequest& request) {
  const std::string_view type = request.headers.get("Content-Type");
  if (!net::lowered(type).starts_with("application/json"))
    throw ApiError(415, "not_supported",
                   "Content-Type: expected application/json, got " + (type.empty() ? "none" : shown(type)));
  return parse_object(request.body);
}

net::HttpResponse json_response(const Json& json, int status) {
  net::HttpResponse response;
  response.status = status;
  response.headers.set("Content-Type", "application/json");
  response.body = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return response;
}

std::string take_text(Json& object, const char* key, std::string otherwise) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  const Json value = *found;
  object.erase(found);
  if (value.is_null()) return otherwise;
  if (!value.is_string())
    throw ApiError(400, "invalid_value", detail::concat(key, ": expected a text, got ", shown(value.dump())),
                   key);
  return value.get<std::string>();
}

bool take_bool(Json& object, const char* key, bool otherwise) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  const Json value = *found;
  object.erase(found);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean())
    throw ApiError(400, "invalid_value",
                   detail::concat(key, ": expected true or false, got ", shown(value.dump())), key);
  return value.get<bool>();
}

std::int64_t take_integer(Json& object, const char* key, std::int64_t otherwise, std::int64_t least,
                          std::int64_t most) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  const Json value = *found;
  object.erase(found);
  if (value.is_null()) return otherwise;
  if (!value.is_number_integer())
    throw ApiError(400, "invalid_value",
                   detail::concat(key, ": expected an integer, got ", shown(value.dump())), key);
  // Beyond 2^63 it is an unsigned one.
  const bool fits = !value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{1} << 62;
  const std::int64_t number = fits ? value.get<std::int64_t>() : most + 1;
  if (number < least || number > most)
    throw ApiError(400, "out_of_range",
                   detail::concat(key, ": expected ", least, " to ", most, ", got ", shown(value.dump())),
                   key);
  return number;
}

}  // namespace pom::serve
