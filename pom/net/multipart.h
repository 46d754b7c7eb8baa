// Forms with a file in them (multipart/form-data, RFC 7578), as browsers and clients send them: small fields
// and one file.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/net/http_message.h"

namespace pom::net {

struct FormLimits {
  std::size_t parts = 32, field_bytes = 64 << 10, file_bytes = 8 << 20;
};

struct FormPart {
  std::string name;
  std::optional<std::string> filename;  // of a file; for people: it names nothing here
  std::string type;                     // "image/png", where it is said
  std::string_view data;                // within the request's body
};

class Form {
 public:
  explicit Form(std::vector<FormPart> parts) : parts_(std::move(parts)) {}
  const FormPart* find(std::string_view name) const;  // the field or file of this name, or nullptr
  const FormPart* file() const;                       // the one file, or nullptr
  const std::vector<FormPart>& parts() const { return parts_; }

 private:
  std::vector<FormPart> parts_;
};

bool is_form(const HttpRequest& request);  // by its type

// The request has to outlive the form. Errors are pom::Error that begin with "form: ": what is not well
// formed, over a limit, a second file, or a second field of one name.
Form parse_form(const HttpRequest& request, const FormLimits& limits = {});

}  // namespace pom::net
