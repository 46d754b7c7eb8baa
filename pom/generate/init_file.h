// The image or clip that sampling begins with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "pom/generate/job.h"
#include "pom/io/image.h"

namespace pom::generate {

// Of a PNG, JPEG or clip. A clip is read whole, frame by frame, to be counted.
InitShape init_shape(const std::filesystem::path& file);

// At most so many frames, of an image one.
std::vector<io::Image> read_init_frames(const std::filesystem::path& file, std::int64_t frames);

}  // namespace pom::generate
