// PNG through libpng: pixels of every kind the format has, and its text.
//
// Depths of 1, 2 and 4 bits and palettes become 8 bits, 16 stay 16; a transparent colour (tRNS) becomes an
// alpha channel; interlaced files are put in order. The samples are those of the file: colour profiles and
// gamma (iCCP, sRGB, cHRM, gAMA), the background colour and EXIF are ignored, and of an animation the still
// picture is read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pom/io/image.h"

namespace pom::io {

// A text chunk. Both parts are UTF-8 here, whatever the chunk was.
struct TextEntry {
  std::string keyword;
  std::string text;

  friend bool operator==(const TextEntry&, const TextEntry&) = default;
};

struct Png {
  Image image;
  std::vector<TextEntry> text;  // tEXt, zTXt and iTXt, in the order of the file
};

// Errors are pom::Error with the path and what is wrong. A checksum that does not fit is wrong; so is a file
// that ends before its IEND. What follows IEND is ignored.
Png read_png(const std::filesystem::path& path);
// The same from the bytes of a file; `source` stands for the path in messages.
Png parse_png(std::span<const std::byte> bytes, std::string_view source = "<memory>");

// Only the pixels: text, damaged or not, is passed over. More than `most` of them are refused by the header.
Image parse_png_image(std::span<const std::byte> bytes, std::string_view source = "<memory>",
                      std::int64_t most = max_pixels);

// Only the text: no pixel is decoded. Compressed text may unpack to 16 MiB in all.
std::vector<TextEntry> read_png_text(const std::filesystem::path& path);
std::vector<TextEntry> parse_png_text(std::span<const std::byte> bytes, std::string_view source = "<memory>");

// The file's bytes: equal for equal input and the same libpng and zlib. Text that Latin-1 can hold becomes
// tEXt, other text iTXt, both before the pixels. A keyword has 1 to 79 characters of Latin-1, and no space at
// either end or beside another.
std::vector<std::byte> encode_png(const Image& image, std::span<const TextEntry> text = {});
void write_png(const std::filesystem::path& path, const Image& image, std::span<const TextEntry> text = {});

}  // namespace pom::io
