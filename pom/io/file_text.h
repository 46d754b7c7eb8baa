// What a file says of itself, whichever kind of file it is: read_file_text gives back the text entries that
// write_picture and open_clip were given.
//
//   PNG, and each frame of a folder   a text chunk for each entry
//   .mp4, .webm                       tags: `comment` has the text of the first entry, as players show it,
//                                     `synopsis` (in an .mp4 `ldes`) all entries
//   .gif, JPEG                        a comment with all entries
//   .y4m                              all entries after the last frame, as a frame that breaks off: its one
//   line of
//                                     head may have 96 bytes, and readers stop at such a frame without
//                                     complaint
//
// All entries as one text are "keyword: text" a line, further lines of a text after a space. They come first
// in a file that grows, and are there when its program is killed; those of an .y4m are there once it is
// finished.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "pom/io/png.h"

namespace pom::io {

// Of keywords and text in one file: more is an error, in writing and in reading.
inline constexpr std::size_t max_file_text = std::size_t{1} << 20;

// The entries in the order of the file, UTF-8; none where it says nothing. The kind is told by the first
// bytes, of a folder it is that of 000000.png. No picture is decoded. A comment that another program wrote is
// an entry "comment". Errors are pom::Error that begin with "file text: PATH: "; a build without FFmpeg or
// libpng reads the text of the kinds that it has.
std::vector<TextEntry> read_file_text(const std::filesystem::path& path);

}  // namespace pom::io
