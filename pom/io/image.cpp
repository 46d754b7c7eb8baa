#include "pom/io/image.h"

#include <bit>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "pom/base/error.h"

namespace pom::io {
namespace {

template <class Sample>
Sample sample_at(const std::uint8_t* row, std::size_t index) {
  Sample value;
  std::memcpy(&value, row + index * sizeof(Sample), sizeof(Sample));
  return value;
}

// colour and alpha have `top` for 1, the background and the result 255; one division, so one rounding.
std::uint8_t over(std::uint64_t colour, std::uint64_t alpha, std::uint64_t background, std::uint64_t top) {
  const std::uint64_t mixed = colour * alpha * 255 + background * (top - alpha) * top;
  return static_cast<std::uint8_t>((mixed + top * top / 2) / (top * top));
}

// `out` may be where the row itself begins, or before it: what is written there has been read.
template <class Sample>
void row_to_rgb8(const Image& image, int y, Rgb background, std::uint8_t* out) {
  constexpr std::uint64_t top = static_cast<Sample>(-1);
  const std::uint8_t* row = image.row(y).data();
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::uint8_t behind[] = {background.red, background.green, background.blue};
  for (std::size_t x = 0; x < static_cast<std::size_t>(image.width); ++x) {
    const std::size_t first = x * channels;
    const std::uint64_t alpha = image.has_alpha() ? sample_at<Sample>(row, first + channels - 1) : top;
    for (std::size_t c = 0; c < 3; ++c)
      *out++ = over(sample_at<Sample>(row, channels < 3 ? first : first + c), alpha, behind[c], top);
  }
}

void rows_to_rgb8(const Image& image, Rgb background, std::uint8_t* out) {
  for (int y = 0; y < image.height; ++y, out += 3 * static_cast<std::size_t>(image.width))
    if (image.bits == 8)
      row_to_rgb8<std::uint8_t>(image, y, background, out);
    else
      row_to_rgb8<std::uint16_t>(image, y, background, out);
}

}  // namespace

void check_size(std::string_view operation, std::int64_t width, std::int64_t height, std::int64_t most) {
  constexpr std::int64_t longest = 0x7fffffff;
  check(width > 0 && height > 0 && width <= longest && height <= longest, operation,
        ": size: expected a width and a height from 1 to 2147483647, got ", width, " x ", height);
  check(width <= most / height, operation, ": size: expected at most ", most, " pixels (2^",
        std::bit_width(static_cast<std::uint64_t>(most)) - 1, "), got ", width, " x ", height);
}

Image make_image(std::string_view operation, std::int64_t width, std::int64_t height, int channels,
                 int bits) {
  check_size(operation, width, height);
  Image image{static_cast<int>(width), static_cast<int>(height), channels, bits, {}};
  try {
    image.data.resize(static_cast<std::size_t>(height) * image.row_bytes());
  } catch (const std::bad_alloc&) {
    fail(operation, ": not enough memory for ", width, " x ", height, " pixels of ", image.pixel_bytes(),
         " bytes");
  }
  return image;
}

void check_image(std::string_view operation, const Image& image) {
  check_size(operation, image.width, image.height);
  check(image.channels >= 1 && image.channels <= 4, operation, ": channels: expected 1 to 4, got ",
        image.channels);
  check(image.bits == 8 || image.bits == 16, operation, ": bits: expected 8 or 16, got ", image.bits);
  const std::size_t bytes = static_cast<std::size_t>(image.height) * image.row_bytes();
  check(image.data.size() == bytes, operation, ": data: expected ", bytes, " bytes for ", image.width, " x ",
        image.height, " pixels, got ", image.data.size());
}

Image to_rgb8(const Image& image, Rgb background) {
  check_image("to_rgb8", image);
  if (image.channels == 3 && image.bits == 8) return image;
  Image result = make_image("to_rgb8", image.width, image.height, 3);
  rows_to_rgb8(image, background, result.data.data());
  return result;
}

Image to_rgb8(Image&& image, Rgb background) {
  check_image("to_rgb8", image);
  if (image.channels == 3 && image.bits == 8) return std::move(image);
  if (image.channels < 3) return to_rgb8(std::as_const(image), background);
  Image result = std::move(image);
  rows_to_rgb8(result, background, result.data.data());
  result.channels = 3, result.bits = 8;
  result.data.resize(static_cast<std::size_t>(result.height) * result.row_bytes());
  return result;
}

}  // namespace pom::io
