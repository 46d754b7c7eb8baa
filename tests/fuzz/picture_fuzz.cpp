// Fuzzes the PNG and JPEG readers. Any input may be refused with a pom::Error; a picture that is accepted
// must be whole, and come back equal with its text when it is written as PNG.
#include "tests/fuzz/fuzz.h"
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>
#include <zlib.h>

#include "pom/io/jpeg.h"
#include "pom/io/picture.h"

namespace {

using namespace pom::io;

using namespace fuzz;

void check_accepted(const Image& image, const std::vector<TextEntry>& text) {
  check_image("fuzz", image);
  const Image rgb = to_rgb8(image);
  require(rgb.width == image.width && rgb.height == image.height && rgb.channels == 3,
          "to_rgb8 keeps the size");
  const Png back = parse_png(encode_png(image, text));
  require(back.image == image, "the same picture");
  require(back.text == text, "the same text");
}

void parse(Bytes bytes) {
  Image image;
  if (!accepted([&] { image = parse_picture(bytes); })) return;
  std::vector<TextEntry> text;
  accepted([&] { text = parse_png_text(bytes); });
  // Other writers' keywords and text may be such as ours refuses.
  std::erase_if(text, [](const TextEntry& entry) {
    return !accepted([&] { encode_png(Image{1, 1, 1, 8, {0}}, std::span(&entry, 1)); });
  });
  check_accepted(image, text);
}

// An arithmetic-coded JPEG of a few bytes may truly have 2^28 pixels; here nobody waits for them.
bool is_slow(Bytes bytes) {
  for (std::size_t i = 0; i + 9 <= bytes.size(); ++i) {
    const auto at = [&](std::size_t k) { return std::to_integer<unsigned>(bytes[i + k]); };
    if (at(0) == 0xff && (at(1) == 0xc9 || at(1) == 0xca) &&
        (at(5) << 8 | at(6)) * (at(7) << 8 | at(8)) > 1u << 18)
      return true;
  }
  return false;
}

// The chunks with lengths cut to the file and checksums that fit: so changes get past the frame.
std::vector<std::byte> reframed(Bytes bytes) {
  std::vector<std::byte> result(bytes.begin(), bytes.end());
  const auto number = [&](std::size_t at, std::uint32_t value) {
    for (std::size_t i = 0; i < 4; ++i) result[at + i] = static_cast<std::byte>(value >> (24 - 8 * i));
  };
  for (std::size_t at = 8; at + 12 <= result.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) length = length << 8 | std::to_integer<std::size_t>(result[at + i]);
    length = std::min(length, result.size() - at - 12);
    number(at, static_cast<std::uint32_t>(length));
    const auto sum = ::crc32_z(0, reinterpret_cast<const Bytef*>(&result[at + 4]), length + 4);
    number(at + 8 + length, static_cast<std::uint32_t>(sum));
    at += 12 + length;
  }
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  if (is_slow(bytes)) return 0;
  parse(bytes);
  if (size > 8 && data[0] == 0x89) parse(reframed(bytes));
  return 0;
}
