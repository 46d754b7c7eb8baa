#include "pom/io/json_labels.h"

#include <nlohmann/json.hpp>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/json_fields.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

using LabelJson = nlohmann::json;

// Follows the parser. Level 1 is the outermost object, 2 the list under "labels", 3 one pair.
class LabelReader {
 public:
  LabelReader(std::string_view source, const std::function<void(std::string&, std::int64_t)>& label)
      : source_(source), label_(label) {}

  bool found = false;

  bool null() {
    if (level_ == 1) within_ = false;
    return value("null");
  }
  bool boolean(bool) { return value("true or false"); }
  bool number_integer(LabelJson::number_integer_t number) { return integer(number); }
  bool number_unsigned(LabelJson::number_unsigned_t number) {
    check(!within_ || number <= INT64_MAX, source_, ": labels: expected classes of 63 bits, got ", number);
    return integer(static_cast<std::int64_t>(number));
  }
  bool number_float(LabelJson::number_float_t, const std::string&) { return value("a fraction"); }
  bool string(std::string& text) {
    if (!within_ || level_ != 3 || part_ != 0) return value("a text");
    name_ = std::move(text);
    ++part_;
    return true;
  }
  bool binary(LabelJson::binary_t&) { return value("bytes"); }
  bool start_object(std::size_t) {
    if (within_) value("an object");
    return enter();
  }
  bool key(std::string& text) {
    if (level_ != 1) return true;
    check(!(within_ = text == "labels") || !found, source_, ": labels: duplicate key");
    return true;
  }
  bool end_object() { return leave(); }
  bool start_array(std::size_t) {
    check(level_ > 0, source_, ": expected an object {…}, got a list");
    if (within_ && level_ == 1) found = true;
    if (within_ && level_ > 2) value("a list");
    part_ = 0;
    return enter();
  }
  bool end_array() {
    if (within_ && level_ == 3) {
      if (part_ != 2) value("a shorter list");
      label_(name_, number_);
    }
    return leave();
  }
  [[noreturn]] bool parse_error(std::size_t position, const std::string&, const LabelJson::exception&) {
    fail(source_, ": at byte ", position, ": expected JSON, got something else");
  }

 private:
  bool integer(std::int64_t number) {
    if (!within_ || level_ != 3 || part_ != 1) return value("a number");
    check(number >= 0, source_, ": labels: ", shown(name_), ": expected a class of 0 or more, got ", number);
    number_ = number;
    ++part_;
    return true;
  }
  // Something that is no part of a pair.
  bool value(std::string_view what) {
    check(level_ > 0, source_, ": expected an object {…}, got ", what);
    check(!within_, source_, ": labels: expected pairs [name, class], got ", what);
    return true;
  }
  bool enter() {
    check(++level_ <= max_json_depth, source_, ": expected at most ", max_json_depth, " levels, got more");
    return true;
  }
  bool leave() {
    if (--level_ == 1) within_ = false;
    return true;
  }

  std::string_view source_;
  const std::function<void(std::string&, std::int64_t)>& label_;
  int level_ = 0, part_ = 0;
  bool within_ = false;  // the value of "labels"
  std::string name_;
  std::int64_t number_ = 0;
};

}  // namespace

bool read_json_labels(std::string_view text, std::string_view source,
                      const std::function<void(std::string&, std::int64_t)>& label) {
  check(text.find('\0') == std::string_view::npos, source, ": expected text, got a byte 0");
  LabelReader reader(source, label);
  LabelJson::sax_parse(text, &reader);
  return reader.found;
}

std::string read_labels_text(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = detail::read_file(path, "json read", max_labels_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace pom::io
