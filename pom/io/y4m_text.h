// Private to the room: text in an .y4m file, after its frames.
//
// The format's own place is its first line, of which FFmpeg reads 96 bytes and others fewer. So the text
// comes last, as a frame that breaks off, where readers stop without complaint:
//
//   FRAME XPOM-TEXT
//   parameters: …                   as_comment
//   XPOM-TEXT=00000123              bytes from "FRAME" to the end of the file
#pragma once

#include <optional>
#include <span>
#include <string>

#include "pom/io/png.h"
#include "pom/io/read_file.h"

namespace pom::io::detail {

inline constexpr std::string_view y4m_signature = "YUV4MPEG2 ";

// What follows the last frame; each frame has `frame_bytes`. Empty where there is no text.
std::string y4m_ending(std::span<const TextEntry> text, std::size_t frame_bytes);

struct Y4mText {
  std::uint64_t begin;  // in the file: where its frames end
  std::string comment;  // for from_comment
};
// Of a file whose end is one; text beyond max_file_text is an error.
std::optional<Y4mText> find_y4m_text(const FileParts& file);

}  // namespace pom::io::detail
