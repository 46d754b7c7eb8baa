// In whole numbers of 1/65536, rounded once: the same bytes on every machine.
#include "pom/io/yuv.h"

#include <algorithm>
#include <cmath>

namespace pom::io::detail {
namespace {

struct Weights {
  std::int64_t y[3], u[3], v[3];
};

Weights weights_of(const YuvMatrix& matrix) {
  const double green = 1 - matrix.red - matrix.blue;
  const double luma = 65536 * 219.0 / 255, chroma = 65536 * 224.0 / 255;
  const auto whole = [](double x) { return static_cast<std::int64_t>(std::llround(x)); };
  Weights w{};
  const double y[3] = {matrix.red, green, matrix.blue};
  for (int c = 0; c < 3; ++c) {
    w.y[c] = whole(luma * y[c]);
    w.u[c] = whole(chroma * ((c == 2 ? 1 : 0) - y[c]) / (2 * (1 - matrix.blue)));
    w.v[c] = whole(chroma * ((c == 0 ? 1 : 0) - y[c]) / (2 * (1 - matrix.red)));
  }
  // Greys have no colour, whatever rounding did.
  w.u[2] = -(w.u[0] + w.u[1]);
  w.v[0] = -(w.v[1] + w.v[2]);
  return w;
}

// The mean of `count` pixels whose samples are summed in rgb.
std::uint8_t mixed(const std::int64_t (&weights)[3], const std::int64_t (&rgb)[3], std::int64_t count,
                   std::int64_t zero) {
  const std::int64_t one = 65536 * count;
  const std::int64_t sum = weights[0] * rgb[0] + weights[1] * rgb[1] + weights[2] * rgb[2] + zero * one;
  return static_cast<std::uint8_t>(std::clamp<std::int64_t>((sum + one / 2) / one, 0, 255));
}

// The samples of pixels (x, y) … (x + side, y + side), those beyond the edge as at the edge.
void sum_square(const Image& image, int x, int y, int side, std::int64_t (&rgb)[3]) {
  for (std::int64_t& sum : rgb) sum = 0;
  for (int dy = 0; dy < side; ++dy) {
    const std::uint8_t* row = image.row(std::min(y + dy, image.height - 1)).data();
    for (int dx = 0; dx < side; ++dx) {
      const std::uint8_t* pixel = row + 3 * static_cast<std::ptrdiff_t>(std::min(x + dx, image.width - 1));
      for (int c = 0; c < 3; ++c) rgb[c] += pixel[c];
    }
  }
}

}  // namespace

void to_yuv444(const Image& image, const YuvMatrix& matrix, const YuvPlane (&planes)[3]) {
  const Weights w = weights_of(matrix);
  std::int64_t rgb[3];
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x) {
      sum_square(image, x, y, 1, rgb);
      planes[0].data[y * planes[0].stride + x] = mixed(w.y, rgb, 1, 16);
      planes[1].data[y * planes[1].stride + x] = mixed(w.u, rgb, 1, 128);
      planes[2].data[y * planes[2].stride + x] = mixed(w.v, rgb, 1, 128);
    }
}

void to_yuv420(const Image& image, const YuvMatrix& matrix, int width, int height,
               const YuvPlane (&planes)[3]) {
  const Weights w = weights_of(matrix);
  std::int64_t rgb[3];
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      sum_square(image, x, y, 1, rgb);
      planes[0].data[y * planes[0].stride + x] = mixed(w.y, rgb, 1, 16);
    }
  for (int y = 0; y < (height + 1) / 2; ++y)
    for (int x = 0; x < (width + 1) / 2; ++x) {
      sum_square(image, 2 * x, 2 * y, 2, rgb);
      planes[1].data[y * planes[1].stride + x] = mixed(w.u, rgb, 4, 128);
      planes[2].data[y * planes[2].stride + x] = mixed(w.v, rgb, 4, 128);
    }
}

}  // namespace pom::io::detail
