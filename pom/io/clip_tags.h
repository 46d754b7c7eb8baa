// Private to the room: what an .mp4 or .webm says of itself.
#pragma once

#include <filesystem>
#include <string>

namespace pom::io::detail {

// The tag with all entries, else the comment of older files and of other programs; for from_comment. Empty
// where the file has neither, an error beyond max_comment bytes.
std::string read_tags(const std::filesystem::path& path);

}  // namespace pom::io::detail
