#include "cli/source.h"

#include <fstream>
#include <string_view>

#include "pom/base/error.h"

namespace pom::cli {
namespace {

constexpr std::string_view kKeyword = "pom sheet";

bool is_jpeg_inside(const std::string& picture) {
  std::ifstream file(picture, std::ios::binary);
  return file.get() == 0xFF && file.get() == 0xD8;
}

}  // namespace

Source read_source(const std::string& picture) {
  check(!is_jpeg_inside(picture), picture,
        ": expected a PNG made by pom sample, got a JPEG, which carries no settings");
  const std::vector<io::TextEntry> text = io::read_png_text(picture);
  Source source{generate::origin_of(text, picture), std::nullopt};
  for (const io::TextEntry& entry : text)
    if (entry.keyword == kKeyword) {
      source.sheet = generate::request_from_json(entry.text, detail::concat(picture, ": ", kKeyword));
      generate::fill_shift(*source.sheet);
    }
  return source;
}

io::TextEntry sheet_entry(const generate::Request& run) {
  generate::Request told = run;
  if (told.shift == 1) told.shift.reset();  // as in the text of its pictures
  return {std::string(kKeyword), generate::request_json(told)};
}

}  // namespace pom::cli
