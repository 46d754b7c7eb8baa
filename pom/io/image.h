// A picture in memory: H rows of W pixels of C samples, from top to bottom without gaps, 8 or 16 bits a
// sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace pom::io {

// No picture read or made here has more pixels: a header of a few bytes must not claim gigabytes.
inline constexpr std::int64_t max_pixels = std::int64_t{1} << 28;

struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;  // 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA; colours are not multiplied by alpha
  int bits = 8;      // 8, or 16 in the byte order of this machine
  std::vector<std::uint8_t> data;  // height * row_bytes()

  bool has_alpha() const { return channels == 2 || channels == 4; }
  std::size_t pixel_bytes() const { return static_cast<std::size_t>(channels) * (bits / 8); }
  std::size_t row_bytes() const { return static_cast<std::size_t>(width) * pixel_bytes(); }
  std::span<std::uint8_t> row(int y) {
    return std::span(data).subspan(static_cast<std::size_t>(y) * row_bytes(), row_bytes());
  }
  std::span<const std::uint8_t> row(int y) const {
    return std::span(data).subspan(static_cast<std::size_t>(y) * row_bytes(), row_bytes());
  }

  friend bool operator==(const Image&, const Image&) = default;
};

struct Rgb {
  std::uint8_t red = 255;
  std::uint8_t green = 255;
  std::uint8_t blue = 255;

  friend bool operator==(const Rgb&, const Rgb&) = default;
};

// A picture of zeros. A size that is not positive or passes max_pixels is an error that begins with
// `operation`, as "png read: cat.png"; so is one that the memory does not hold.
Image make_image(std::string_view operation, std::int64_t width, std::int64_t height, int channels,
                 int bits = 8);

// The part of make_image that looks at the size; `most` pixels, a power of two.
void check_size(std::string_view operation, std::int64_t width, std::int64_t height,
                std::int64_t most = max_pixels);

// That the fields have the values said above and agree with the data.
void check_image(std::string_view operation, const Image& image);

// Any picture as 8-bit RGB: grey in all three, 16 bits rounded to the nearest of 8, and what alpha lets
// through of the background. Mixing is done on the values as they are stored, as browsers do, and rounds
// once.
Image to_rgb8(const Image& image, Rgb background = {});
// The same in the memory of the picture, where that is large enough: a large one is not held twice.
Image to_rgb8(Image&& image, Rgb background = {});

}  // namespace pom::io
