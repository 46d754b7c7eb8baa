// Clips in files as a data set: whatever io::ClipReader reads, with a caption each. F frames of H x W pixels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pom/data/folder.h"

namespace pom::data {

struct CaptionedClip {
  std::filesystem::path path;
  std::string caption;  // may be empty: none was found
};

// The clips of a folder, in the order of their names, folders within it included. Captions are in
// captions.csv or metadata.csv at its root, which then lists the clips (a column file, file_name, path or
// video, relative to the folder; a column caption, text or prompt); else beside each clip, as name.txt of
// name.mp4. Hidden files are passed over. A folder without clips is an error, as is a table that cannot be
// read, a row of it that leads out of the folder (by an absolute path, by "..", by a link), and a caption
// that is not UTF-8.
std::vector<CaptionedClip> find_clips(const std::string& root);

// The clips of a table in WebVid's form: the caption in the last but one column, the file in the last,
// relative to the table's folder, which it must not leave. ", shutterstock watermark" is added to the caption
// of a row whose page is that agency's, as the authors do. A first row without the name of a clip is taken
// for names of columns.
std::vector<CaptionedClip> find_webvid_clips(const std::string& table);

const std::vector<std::string_view>& clip_endings();  // ".mp4", …

// Rows of fields of a CSV file (RFC 4180): quotes around fields that hold commas, quotes or ends of lines.
// Rows that are empty are left out. `source` stands for the file in messages.
std::vector<std::vector<std::string>> parse_csv(std::string_view text, std::string_view source);

// Examples of config.frames frames at config.fps, scaled to cover config.size, the middle kept. In training a
// clip that is longer begins somewhere, at each visit elsewhere; in validation at its beginning. A clip that
// is broken, too short or without a caption is an error when it is asked for: the loader skips, counts and
// names it.
FileSets open_clip_folder(const DataConfig& config, std::uint64_t seed);

}  // namespace pom::data
