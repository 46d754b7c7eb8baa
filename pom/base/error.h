// What a person did wrong, said so that they can mend it. Our own mistakes are assertions instead.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace pom {

// Reads "operation: argument: expected ..., got ...". Every error the library throws for bad input is one.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}
}  // namespace detail

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(detail::concat(parts...));
}

// check(ok, "polynomial_mixer: order: expected ", ...): throws pom::Error with the parts joined when !ok.
template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail(parts...);
}

}  // namespace pom
