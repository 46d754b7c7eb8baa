// What goes wrong with a request, in the one shape that all routes answer with:
//
//   {"error": {"message": "steps: expected 1 to 250, got 0", "type": "invalid_request_error",
//              "param": "steps", "code": "out_of_range"}}
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "pom/net/http_message.h"

namespace pom::serve {

struct ApiError : std::exception {
  ApiError(int status_, std::string code_, std::string message_, std::string param_ = {})
      : status(status_), code(std::move(code_)), message(std::move(message_)), param(std::move(param_)) {}
  const char* what() const noexcept override { return message.c_str(); }

  int status;
  std::string code, message, param;        // param: the field, where it is one
  std::optional<double> retry_after = {};  // seconds
  bool retry = true;  // whether clients that try again by themselves should, where the status invites it
};

net::HttpResponse error_response(const ApiError& error);
net::HttpResponse error_response(int status, std::string_view code, std::string_view message);

// Of a mistake that was found in a request's fields: which one, by the message's own words.
ApiError field_error(std::string_view message);

}  // namespace pom::serve
