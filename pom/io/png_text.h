// Private to the room: the chunks of a PNG file and the text in them, without libpng.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pom/io/png.h"
#include "pom/io/read_file.h"

namespace pom::io::detail {

inline constexpr std::array<unsigned char, 8> png_signature = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

// The values of IHDR that bound what the pixels need.
struct PngHeader {
  std::uint32_t width;
  std::uint32_t height;
  unsigned bits_per_pixel;
};

// Checks the signature, IHDR's place and length, and that the size is within `most` pixels and can come out
// of a file of so many bytes. `site` begins the messages.
PngHeader check_png_header(std::span<const std::byte> bytes, std::string_view site,
                           std::int64_t most = max_pixels);

std::vector<TextEntry> find_png_text(std::span<const std::byte> bytes, std::string_view site);
// The same of a file whose pixels stay where they are. Text beyond `most` bytes is an error.
std::vector<TextEntry> find_png_text(const FileParts& file, std::size_t most);

// A chunk to be written: its type and what it holds.
struct PngChunk {
  std::string type;
  std::string data;
};
PngChunk text_chunk(const TextEntry& entry, std::string_view operation);

}  // namespace pom::io::detail
