// Fuzzes the reader of captions.csv. A table that is accepted must come back equal when it is written with
// all fields in quotes and read again.
#include "tests/fuzz/fuzz.h"
#include <cstdint>

#include "pom/data/clips.h"

namespace {

using namespace pom::data;

using Rows = std::vector<std::vector<std::string>>;

std::string csv_of(const Rows& rows) {
  std::string text;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += '"';
      for (const char c : row[i]) text.append(c == '"' ? 2 : 1, c);
      text += i + 1 < row.size() ? "\"," : "\"\n";
    }
  return text;
}

void parse(std::string_view text) {
  Rows rows;
  if (fuzz::accepted([&] { rows = parse_csv(text, "fuzz.csv"); }))
    fuzz::require(parse_csv(csv_of(rows), "again.csv") == rows, "the same rows");
  static const fuzz::Folder folder;
  folder.put("captions.csv", text);
  std::vector<CaptionedClip> clips;
  if (!fuzz::accepted([&] { clips = find_clips(folder.path().string()); })) return;
  fuzz::require(!clips.empty() && clips.size() < std::max<std::size_t>(rows.size(), 2),
                "a clip for each row");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parse(fuzz::text_of(data, size));
  return 0;
}
