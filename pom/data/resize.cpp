// Two passes of weighted sums in floats, over what the crop keeps alone. W x H of the picture, 3 channels.
#include "pom/data/resize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "pom/base/error.h"

namespace pom::data {
namespace {

// For each pixel of the result the pixels it is made of: [first[i], first[i] + width) with weights that sum
// to 1. What lies outside the picture is left out, and the others weigh more.
struct Weights {
  std::int64_t taps = 0;  // room for each pixel
  std::vector<std::int64_t> first, count;
  std::vector<float> weight;  // pixel i has weight[i * taps ...]

  const float* of(std::int64_t i) const { return weight.data() + i * taps; }
};

// One side: `from` pixels become `scaled`, of which [skipped, skipped + kept) remain.
struct Side {
  std::int64_t from, scaled, skipped, kept;
};

Weights triangle_weights(const Side& side) {
  const double scale = static_cast<double>(side.from) / static_cast<double>(side.scaled);
  const double support = std::max(1.0, scale);
  Weights result;
  result.taps = 2 * static_cast<std::int64_t>(std::ceil(support)) + 1;
  const auto kept = static_cast<std::size_t>(side.kept);
  result.first.resize(kept);
  result.count.resize(kept);
  result.weight.resize(kept * static_cast<std::size_t>(result.taps));
  std::vector<double> weights;
  for (std::size_t i = 0; i < kept; ++i) {
    const double centre = (static_cast<double>(side.skipped + static_cast<std::int64_t>(i)) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(std::floor(centre - support)));
    const auto last = std::min(side.from, static_cast<std::int64_t>(std::ceil(centre + support)));
    weights.clear();
    double sum = 0;
    for (std::int64_t x = first; x < last; ++x) {
      const double away = std::fabs(static_cast<double>(x) + 0.5 - centre) / support;
      weights.push_back(std::max(0.0, 1.0 - away));
      sum += weights.back();
    }
    result.first[i] = first;
    result.count[i] = std::min(std::ssize(weights), result.taps);
    for (std::int64_t k = 0; k < result.count[i]; ++k)
      result.weight[i * static_cast<std::size_t>(result.taps) + static_cast<std::size_t>(k)] =
          static_cast<float>(weights[static_cast<std::size_t>(k)] / sum);
  }
  return result;
}

struct Sides {
  Side across, down;
};

Sides cover(std::int64_t from_w, std::int64_t from_h, std::int64_t width, std::int64_t height) {
  // In whole numbers, so that no rounding decides which side fits exactly.
  const bool by_width = width * from_h >= height * from_w;
  const auto other = [](std::int64_t from, std::int64_t to, std::int64_t of) {
    return (2 * of * to + from) / (2 * from);  // of·to/from, to the nearest
  };
  const std::int64_t w = by_width ? width : std::max(width, other(from_h, height, from_w));
  const std::int64_t h = by_width ? std::max(height, other(from_w, width, from_h)) : height;
  return {{from_w, w, (w - width) / 2, width}, {from_h, h, (h - height) / 2, height}};
}

// One row of the picture made `width` pixels wide: out (width, 3).
void across_row(const std::uint8_t* row, const Weights& weights, std::int64_t width, float* out) {
  for (std::int64_t x = 0; x < width; ++x) {
    const std::uint8_t* pixel = row + 3 * weights.first[static_cast<std::size_t>(x)];
    const float* weight = weights.of(x);
    float sum[3] = {};
    for (std::int64_t k = 0; k < weights.count[static_cast<std::size_t>(x)]; ++k, pixel += 3)
      for (int c = 0; c < 3; ++c) sum[c] += weight[k] * static_cast<float>(pixel[c]);
    for (int c = 0; c < 3; ++c) out[3 * x + c] = sum[c];
  }
}

}  // namespace

void resize_and_crop(const io::Image& picture, std::int64_t width, std::int64_t height,
                     std::span<std::uint8_t> out) {
  io::check_image("resize_and_crop", picture);
  check(picture.channels == 3 && picture.bits == 8, "resize_and_crop: picture: expected 8-bit RGB");
  check(out.size() == static_cast<std::size_t>(3 * width * height), "resize_and_crop: out: expected ",
        3 * width * height, " bytes, got ", out.size());
  const Sides sides = cover(picture.width, picture.height, width, height);
  const Weights across = triangle_weights(sides.across), down = triangle_weights(sides.down);
  // Rows made narrow wait in a ring until the last row of the result that needs them.
  std::vector<float> ring(static_cast<std::size_t>(down.taps * width * 3)),
      sum(static_cast<std::size_t>(width * 3));
  std::int64_t made = down.first.front();
  for (std::int64_t y = 0; y < height; ++y) {
    const std::int64_t first = down.first[static_cast<std::size_t>(y)];
    const std::int64_t count = down.count[static_cast<std::size_t>(y)];
    for (made = std::max(made, first); made < first + count; ++made)
      across_row(picture.row(static_cast<int>(made)).data(), across, width,
                 ring.data() + made % down.taps * width * 3);
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (std::int64_t k = 0; k < count; ++k) {
      const float weight = down.of(y)[k];
      const float* row = ring.data() + (first + k) % down.taps * width * 3;
      for (std::int64_t i = 0; i < width * 3; ++i) sum[static_cast<std::size_t>(i)] += weight * row[i];
    }
    for (int c = 0; c < 3; ++c)
      for (std::int64_t x = 0; x < width; ++x)
        out[static_cast<std::size_t>((c * height + y) * width + x)] = static_cast<std::uint8_t>(
            std::clamp(sum[static_cast<std::size_t>(3 * x + c)] + 0.5f, 0.0f, 255.0f));
  }
}

}  // namespace pom::data
