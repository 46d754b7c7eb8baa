// Private to the room: what a folder of frames has in it, for the writer and the reader of such clips.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pom::io::detail {

inline constexpr const char* record_name = "clip.json";  // says how many frames a clip wrote
inline constexpr const char* record_kind = "frames of a clip";

std::string frame_name(std::int64_t number);  // 000000.png

// Of anything that would be taken for a frame, also "0000012.png".
std::vector<std::string> frame_names(const std::filesystem::path& folder);
// -1 of a name that no clip gives its frames.
std::int64_t frame_number(const std::string& name);

}  // namespace pom::io::detail
