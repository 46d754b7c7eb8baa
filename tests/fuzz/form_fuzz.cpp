// Fuzzes the parser of forms: the first line is the content type, the rest the body. What is accepted keeps
// the limits, lies within the body, and comes back equal when it is written and read again.
#include "tests/fuzz/fuzz.h"
#include <cstdint>
#include <set>

#include "pom/net/multipart.h"

namespace {

using namespace pom::net;

constexpr FormLimits limits{.parts = 5, .field_bytes = 64, .file_bytes = 512};

void check_parts(const HttpRequest& request, const Form& form) {
  std::set<std::string> names;
  int files = 0;
  for (const FormPart& part : form.parts()) {
    fuzz::require(part.data.data() >= request.body.data() &&
                      part.data.data() + part.data.size() <= request.body.data() + request.body.size(),
                  "data lies in the body");
    fuzz::require(part.data.size() <= (part.filename ? limits.file_bytes : limits.field_bytes),
                  "limits are kept");
    fuzz::require(!part.name.empty() && names.insert(part.name).second, "one of each name");
    fuzz::require(form.find(part.name) == &part, "is found by its name");
    files += part.filename.has_value();
  }
  fuzz::require(form.parts().size() <= limits.parts && files <= 1, "as many as may be");
  fuzz::require((form.file() != nullptr) == (files == 1), "the file is found");
}

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

void check_again(const Form& form) {
  const std::string boundary = "a-boundary-that-no-fuzzer-finds-71d0c1b9";
  HttpRequest again;
  again.headers.add("Content-Type", "multipart/form-data; boundary=" + boundary);
  for (const FormPart& part : form.parts()) {
    if (part.data.find(boundary) != std::string_view::npos) return;
    again.body += "--" + boundary + "\r\nContent-Disposition: form-data; name=" + in_quotes(part.name);
    if (part.filename) again.body += "; filename=" + in_quotes(*part.filename);
    again.body += "\r\n\r\n" + std::string(part.data) + "\r\n";
  }
  again.body += "--" + boundary + "--\r\n";
  const Form second = parse_form(again, limits);
  fuzz::require(second.parts().size() == form.parts().size(), "as many parts");
  for (std::size_t i = 0; i < form.parts().size(); ++i) {
    const FormPart &a = form.parts()[i], &b = second.parts()[i];
    fuzz::require(a.name == b.name && a.filename == b.filename && a.data == b.data, "the same part");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const std::size_t line = std::min(text.find('\n'), text.size());
  HttpRequest request;
  request.headers.add("Content-Type", std::string(text.substr(0, line)));
  request.body = text.substr(std::min(line + 1, text.size()));
  std::optional<Form> form;
  if (!fuzz::accepted([&] { form = parse_form(request, limits); })) return 0;
  fuzz::require(is_form(request), "by its type");
  check_parts(request, *form);
  check_again(*form);
  return 0;
}
