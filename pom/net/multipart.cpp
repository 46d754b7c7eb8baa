#include "pom/net/multipart.h"

#include <algorithm>
#include <utility>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/json_header.h"

namespace pom::net {
namespace {

constexpr std::size_t max_part_head = 2048, max_name = 256;
constexpr std::string_view line_end = "\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// A value with parameters: form-data; name="a"; filename="b \"c\".png".
class Parameters {
 public:
  explicit Parameters(std::string_view text) : rest_(text) { value_ = trimmed(take_until(';')); }

  const std::string& value() const { return value_; }

  // The next name and its value; false at the end.
  bool next(std::string& name, std::string& value) {
    rest_ = rest_.substr(std::min(rest_.find_first_not_of(" \t;"), rest_.size()));
    if (rest_.empty()) return false;
    check(rest_.find('=') != std::string_view::npos, "form: expected name=value, got \"", shown(rest_), "\"");
    name = lowered(trimmed(take_until('=')));
    rest_ = rest_.substr(std::min(rest_.find_first_not_of(" \t"), rest_.size()));
    value = !rest_.empty() && rest_.front() == '"' ? quoted() : std::string(trimmed(take_until(';')));
    return true;
  }

 private:
  std::string_view take_until(char mark) {
    const std::size_t end = std::min(rest_.find(mark), rest_.size());
    const std::string_view taken = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return taken;
  }

  std::string quoted() {
    std::string text;
    for (std::size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == '"') {
        rest_.remove_prefix(i + 1);
        return text;
      }
      if (rest_[i] == '\\' && i + 1 < rest_.size()) ++i;
      text += rest_[i];
    }
    fail("form: expected a quote at the end of a value, got none");
  }

  std::string_view rest_;
  std::string value_;
};

std::string boundary_of(const HttpRequest& request) {
  Parameters parameters(request.headers.get("Content-Type"));
  check(same_name(parameters.value(), "multipart/form-data"), "form: expected multipart/form-data, got \"",
        shown(parameters.value()), "\"");
  std::string boundary;
  for (std::string name, value; parameters.next(name, value);) {
    if (name != "boundary") continue;
    check(boundary.empty(), "form: boundary: expected one, got two");
    boundary = value;
  }
  const auto allowed = [](char c) { return c > 0x20 && c < 0x7f; };
  check(!boundary.empty() && boundary.size() <= 70 && std::ranges::all_of(boundary, allowed),
        "form: boundary: expected 1 to 70 printable characters");
  return boundary;
}

// In a message, what clients call a part comes shortened and harmless.
std::string in_quotes(std::string_view text) {
  return pom::detail::concat('"', shown(text, 64), '"');
}

void read_disposition(std::string_view text, FormPart& part) {
  Parameters parameters(text);
  check(same_name(parameters.value(), "form-data"), "form: Content-Disposition: expected form-data");
  bool named = false;
  for (std::string name, value; parameters.next(name, value);) {
    if (name != "name" && name != "filename") continue;  // "filename*" says the same once more
    check(value.size() <= max_name && io::detail::find_invalid_utf8(value) == value.size(), "form: ", name,
          ": expected at most ", max_name, " bytes of UTF-8");
    check(name == "name" ? !named : !part.filename, "form: ", name, ": expected one, got two");
    named = named || name == "name";
    if (name == "name")
      part.name = value;
    else
      part.filename = value;
  }
  check(named && !part.name.empty(), "form: expected a part with a name, got one without");
}

FormPart read_part_head(std::string_view head) {
  FormPart part;
  bool disposed = false;
  while (!head.empty()) {
    const std::size_t end = std::min(head.find(line_end), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + line_end.size(), head.size()));
    const std::size_t colon = line.find(':');
    check(colon != std::string_view::npos, "form: headers of a part: expected \"Name: value\", got ",
          in_quotes(line));
    const std::string_view name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
    if (same_name(name, "Content-Disposition")) {
      check(!std::exchange(disposed, true), "form: Content-Disposition: expected one, got two");
      read_disposition(value, part);
    } else if (same_name(name, "Content-Type")) {
      part.type = value;
    } else if (same_name(name, "Content-Transfer-Encoding")) {
      check(same_name(value, "binary") || same_name(value, "8bit") || same_name(value, "7bit"),
            "form: Content-Transfer-Encoding: expected binary, got ", in_quotes(value));
    }
  }
  check(disposed, "form: expected a part with Content-Disposition, got one without");
  return part;
}

void check_part(const FormPart& part, const std::vector<FormPart>& others, const FormLimits& limits) {
  const std::size_t most = part.filename ? limits.file_bytes : limits.field_bytes;
  check(part.data.size() <= most, "form: ", in_quotes(part.name), ": expected at most ", most, " bytes, got ",
        part.data.size());
  check(others.size() < limits.parts, "form: expected at most ", limits.parts, " parts");
  for (const FormPart& each : others) {
    check(each.name != part.name, "form: ", in_quotes(part.name), ": expected one, got two");
    check(!each.filename || !part.filename, "form: expected one file, got two");
  }
}

}  // namespace

const FormPart* Form::find(std::string_view name) const {
  const auto found = std::ranges::find(parts_, name, &FormPart::name);
  return found == parts_.end() ? nullptr : &*found;
}

const FormPart* Form::file() const {
  const auto found =
      std::ranges::find_if(parts_, [](const FormPart& each) { return each.filename.has_value(); });
  return found == parts_.end() ? nullptr : &*found;
}

bool is_form(const HttpRequest& request) {
  const std::string_view type = request.headers.get("Content-Type");
  return same_name(trimmed(type.substr(0, type.find(';'))), "multipart/form-data");
}

Form parse_form(const HttpRequest& request, const FormLimits& limits) {
  const std::string mark = pom::detail::concat("--", boundary_of(request)),
                    next_mark = pom::detail::concat(line_end, mark);
  std::string_view rest = request.body;
  check(rest.starts_with(mark), "form: expected the boundary first");
  rest.remove_prefix(mark.size());
  std::vector<FormPart> parts;
  while (!rest.starts_with("--")) {
    check(rest.starts_with(line_end), "form: expected the end of a line after the boundary");
    // The end of the boundary's line counts to the head, which may be empty.
    const std::size_t head_end = rest.substr(0, max_part_head).find("\r\n\r\n");
    check(head_end != std::string_view::npos, "form: expected the headers of a part, of at most ",
          max_part_head, " bytes");
    FormPart part = read_part_head(rest.substr(line_end.size(), std::max(head_end, line_end.size()) - 2));
    rest.remove_prefix(head_end + 4);
    const std::size_t end = rest.find(next_mark);
    check(end != std::string_view::npos, "form: expected the boundary after a part, got the end of the body");
    part.data = rest.substr(0, end);
    check_part(part, parts, limits);
    parts.push_back(std::move(part));
    rest.remove_prefix(end + next_mark.size());
  }
  rest.remove_prefix(2);
  check(rest.empty() || rest == line_end, "form: expected the end of the body after the last boundary");
  return Form(std::move(parts));
}

}  // namespace pom::net
