// Base64 (RFC 4648, section 4): the alphabet with + and /, padded, in one line.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace pom::net {

std::string base64_encode(std::string_view bytes);

// Nothing for a text that base64_encode does not give: other characters, white space, missing padding, bits
// after the end.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace pom::net
