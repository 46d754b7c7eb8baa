// Pictures in files of whichever kind: read by what they hold, written by what they are called.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "pom/io/image.h"
#include "pom/io/png.h"

namespace pom::io {

// A PNG or JPEG file, told apart by its first bytes and not by its name. What png.h and jpeg.h say holds.
Image read_picture(const std::filesystem::path& path, std::int64_t most = max_pixels);
Image parse_picture(std::span<const std::byte> bytes, std::string_view source = "<memory>",
                    std::int64_t most = max_pixels);

// Writes .png, .jpg or .jpeg (in any case), whole or not at all. JPEG has no alpha and 8 bits only: other
// pictures are put on white and rounded; its text goes into the comment, one "keyword: text" a line
// (file_text.h, which reads it again). Quality is JPEG's.
void write_picture(const std::filesystem::path& path, const Image& image,
                   std::span<const TextEntry> text = {}, int quality = 95);

// That write_picture knows the extension: to be asked before an hour of work, not after it.
void check_picture_name(const std::filesystem::path& path);

// "libpng 1.6.39, libjpeg-turbo 2.1.5"; empty where this build has neither and all of the above are errors.
std::string picture_libraries();

}  // namespace pom::io
