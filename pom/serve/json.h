// JSON of requests and answers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "pom/net/http_message.h"

namespace pom::serve {

using Json = nlohmann::ordered_json;

// The object in a body: 400 bad_json for anything else, keys that come twice and what is nested deeper
// than 16. Numbers such as 20.0 become integers: Python's clients write them so.
Json parse_object(std::string_view body);
// The body of a request that says it is JSON: else 415.
Json parse_object(const net::HttpRequest& request);

net::HttpResponse json_response(const Json& json, int status = 200);

// Of a key, which is taken out of the object; `otherwise` where it is not there or null. Another type is a
// 400 that names it.
std::string take_text(Json& object, const char* key, std::string otherwise = {});
bool take_bool(Json& object, const char* key, bool otherwise);
std::int64_t take_integer(Json& object, const char* key, std::int64_t otherwise, std::int64_t least,
                          std::int64_t most);

}  // namespace pom::serve
