#include "cli/source.h"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "pom/base/error.h"

namespace pom::cli {
namespace {

constexpr std::string_view kKeyword = "pom sheet", kParameters = "parameters";

// "sheet of 30 images: circle, ring, …; seeds 7 to 36"
std::string sheet_text(std::span<const generate::Request> pictures) {
  constexpr std::size_t most = 20;
  std::vector<std::string> classes;
  for (const generate::Request& picture : pictures)
    if (std::ranges::find(classes, picture.class_name) == classes.end())
      classes.push_back(picture.class_name);
  std::string names;
  for (std::size_t i = 0; i < std::min(classes.size(), most); ++i) names += (i == 0 ? "" : ", ") + classes[i];
  if (classes.size() > most) names += detail::concat(" and ", classes.size() - most, " more");
  return detail::concat("sheet of ", pictures.size(), pictures.size() == 1 ? " image: " : " images: ", names,
                        "; seeds ", pictures.front().seed, " to ", pictures.back().seed);
}

io::TextEntry sheet_entry(const generate::Request& run) {
  generate::Request told = run;
  if (told.shift == 1) told.shift.reset();  // as in the text of its pictures
  return {std::string(kKeyword), generate::request_json(told)};
}

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

void describe_sheet(std::vector<io::TextEntry>& text, const generate::Request& run,
                    std::span<const generate::Request> pictures) {
  for (io::TextEntry& entry : text)
    if (entry.keyword == kParameters)  // whose first line names the class
      entry.text =
          sheet_text(pictures) + entry.text.substr(std::min(entry.text.find('\n'), entry.text.size()));
  text.push_back(sheet_entry(run));
}

}  // namespace pom::cli
