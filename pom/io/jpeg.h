// JPEG through libjpeg-turbo, 8 bits a sample: grey or RGB, upright.
//
// The orientation that EXIF gives is applied. CMYK and YCCK become RGB, with the inverted values that Adobe's
// marker announces; colour profiles are ignored.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "pom/io/image.h"

namespace pom::io {

// Errors are pom::Error with the path and what is wrong. Data that is truncated or damaged is an error, also
// where a viewer would show the rest in grey.
Image read_jpeg(const std::filesystem::path& path);
Image parse_jpeg(std::span<const std::byte> bytes, std::string_view source = "<memory>",
                 std::int64_t most = max_pixels);

// An 8-bit picture without alpha (to_rgb8 makes one). Quality 1 to 100; from 90 colours keep their full
// resolution (4:4:4), below they have half of it (4:2:0). A comment, not empty, becomes a COM marker of at
// most 65533 bytes.
std::vector<std::byte> encode_jpeg(const Image& image, int quality = 95, std::string_view comment = {});
void write_jpeg(const std::filesystem::path& path, const Image& image, int quality = 95,
                std::string_view comment = {});

}  // namespace pom::io
