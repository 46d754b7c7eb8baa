#include "cli/source.h"

#include <algorithm>
#include <string_view>

#include "pom/base/error.h"
#include "pom/io/file_text.h"

namespace pom::cli {
namespace {

constexpr std::string_view kKeyword = "pom sheet", kParameters = "parameters";

// "sheet of 30 images: circle, ring, …; seeds 7 to 36"
std::string sheet_text(std::span<const generate::Request> items) {
  constexpr std::size_t most = 20;
  std::vector<std::string> classes;
  for (const generate::Request& item : items)
    if (std::ranges::find(classes, item.subject()) == classes.end()) classes.push_back(item.subject());
  std::string names;
  for (std::size_t i = 0; i < std::min(classes.size(), most); ++i) names += (i == 0 ? "" : ", ") + classes[i];
  if (classes.size() > most) names += detail::concat(" and ", classes.size() - most, " more");
  const bool clips = items.front().frames && *items.front().frames != "1";
  return detail::concat("sheet of ", items.size(), clips ? " clip" : " image",
                        items.size() == 1 ? ": " : "s: ", names, "; seeds ", items.front().own_seed(), " to ",
                        items.back().own_seed());
}

io::TextEntry sheet_entry(const generate::Request& run) {
  generate::Request told = run;
  if (told.shift == 1) told.shift.reset();  // as in the text of its images
  generate::forget_folders(told);
  return {std::string(kKeyword), generate::request_json(told)};
}

}  // namespace

Source read_source(const std::string& file) {
  const std::vector<io::TextEntry> text = io::read_file_text(file);
  Source source{generate::origin_of(text, file), std::nullopt};
  for (const io::TextEntry& entry : text)
    if (entry.keyword == kKeyword) {
      source.sheet = generate::request_from_json(entry.text, detail::concat(file, ": ", kKeyword));
      generate::fill_shift(*source.sheet);
      generate::check_no_writing(*source.sheet, detail::concat(file, ": ", kKeyword, ": "));
    }
  return source;
}

void describe_sheet(std::vector<io::TextEntry>& text, const generate::Request& run,
                    std::span<const generate::Request> items) {
  for (io::TextEntry& entry : text)
    if (entry.keyword == kParameters)  // whose first line names the class
      entry.text = sheet_text(items) + entry.text.substr(std::min(entry.text.find('\n'), entry.text.size()));
  text.push_back(sheet_entry(run));
}

}  // namespace pom::cli
