#include "pom/io/exif.h"

#include <cstdint>
#include <cstring>
#include <optional>

#include "pom/base/error.h"

namespace pom::io {
namespace {

// TIFF: numbers in the byte order it declares, read at offsets that may lie anywhere.
class Tiff {
 public:
  explicit Tiff(std::span<const std::byte> bytes) : bytes_(bytes), little_(byte(0) == 'I') {}

  bool is_tiff() const {
    return byte(0) == byte(1) && (byte(0) == 'I' || byte(0) == 'M') && number(2, 2) == 42;
  }

  // Nothing where the number is not within the bytes.
  std::optional<std::uint32_t> number(std::uint64_t offset, unsigned count) const {
    if (offset + count > bytes_.size()) return std::nullopt;
    std::uint32_t value = 0;
    for (unsigned i = 0; i < count; ++i) value = value << 8 | *byte(offset + (little_ ? count - 1 - i : i));
    return value;
  }

 private:
  std::optional<unsigned> byte(std::uint64_t offset) const {
    if (offset >= bytes_.size()) return std::nullopt;
    return std::to_integer<unsigned>(bytes_[offset]);
  }

  std::span<const std::byte> bytes_;
  bool little_;
};

constexpr std::uint32_t orientation_tag = 0x0112, short_type = 3;
constexpr std::size_t entry_bytes = 12;  // tag, type, count, value

}  // namespace

int exif_orientation(std::span<const std::byte> marker) {
  constexpr char prefix[] = {'E', 'x', 'i', 'f', 0, 0};
  if (marker.size() < sizeof prefix || std::memcmp(marker.data(), prefix, sizeof prefix) != 0) return 1;
  const Tiff tiff(marker.subspan(sizeof prefix));
  if (!tiff.is_tiff()) return 1;
  const std::uint64_t folder = tiff.number(4, 4).value_or(0);
  const std::uint32_t entries = tiff.number(folder, 2).value_or(0);
  for (std::uint32_t i = 0; i < entries; ++i) {
    const std::uint64_t entry = folder + 2 + i * entry_bytes;
    if (tiff.number(entry, 2) != orientation_tag || tiff.number(entry + 2, 2) != short_type) continue;
    const std::uint32_t value = tiff.number(entry + 8, 2).value_or(1);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Image upright(Image image, int orientation) {
  check_image("upright", image);
  check(orientation >= 1 && orientation <= 8, "upright: orientation: expected 1 to 8, got ", orientation);
  if (orientation == 1) return image;
  // In the file: 5 to 8 have rows and columns exchanged; then some are read from the right or from below.
  const bool exchanged = orientation >= 5;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image result = image;
  if (exchanged) std::swap(result.width, result.height);
  const std::size_t pixel = image.pixel_bytes();
  for (int y = 0; y < result.height; ++y) {
    std::uint8_t* out = result.row(y).data();
    for (int x = 0; x < result.width; ++x, out += pixel) {
      const int u = exchanged ? y : x, v = exchanged ? x : y;
      const int column = from_right ? image.width - 1 - u : u;
      const int row = from_below ? image.height - 1 - v : v;
      std::memcpy(out, image.row(row).data() + static_cast<std::size_t>(column) * pixel, pixel);
    }
  }
  return result;
}

}  // namespace pom::io
