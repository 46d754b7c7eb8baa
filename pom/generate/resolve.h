// Private to the room: the parts of resolving that have files of their own.
#pragma once

#include "pom/generate/job.h"

namespace pom::generate {

// Fills what `request` leaves open from the file of the stream that it continues.
struct Continued {
  Request request;
  std::string prompt;
  std::optional<double> fps;
};
Continued read_continued(const std::filesystem::path& path);
void fill_from(Request& request, const Request& saved);

// Frames, blocks, changes of the prompt and what else makes an item a clip.
void resolve_clip(Job& job, const Request& request, const ModelConfig& config, const ModelShape& shape);

// A whole number that takes the whole text.
std::optional<std::int64_t> whole_number(std::string_view text);

}  // namespace pom::generate
